"""Module and batch -> graph features, under fake tensors, without a device."""

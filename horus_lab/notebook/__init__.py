"""`%horus`, `%%horus` and their displays."""

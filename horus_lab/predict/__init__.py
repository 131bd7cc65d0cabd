"""Graph features and a device's specification -> a prediction with intervals."""

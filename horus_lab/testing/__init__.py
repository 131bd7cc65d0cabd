"""A manual clock, fake NVML and a scripted predictor: for our tests and other people's."""

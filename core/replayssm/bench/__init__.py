"""Measuring kernels on a GPU: ceilings of the device, the ordinary decode of the same run, and a gate before any speed."""

"""Checks of the NVIDIA driver and of NVML."""

"""Checks of torch: its build, its import, its CUDA libraries, the driver that it needs."""

"""Checks of the host: memory, disks, network, container, Python, environment variables."""

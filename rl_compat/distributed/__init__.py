"""Resource pools and worker groups."""

"""Training on offline data."""

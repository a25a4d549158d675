"""Training on given responses."""

"""The training loop, and the setup, validation, checkpoints and tools around it."""

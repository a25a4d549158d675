"""The order of rows over epochs, and resuming in the middle."""

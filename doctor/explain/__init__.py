"""Finding the root cause of the errors in a log."""

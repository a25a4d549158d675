"""Functions that score responses."""

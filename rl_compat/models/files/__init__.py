"""Model files: where they come from, how they are read and written."""

"""The keys of verl and their translation."""

"""The checks, grouped by what they examine."""

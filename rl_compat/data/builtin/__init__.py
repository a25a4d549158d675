"""Datasets that ship with the package or are generated."""

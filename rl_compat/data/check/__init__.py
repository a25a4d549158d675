"""Checks of a dataset before a run."""

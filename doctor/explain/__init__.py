"""Naming the cause behind an error message."""

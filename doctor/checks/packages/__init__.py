"""Checks of the packages that are used with torch."""

"""Findings about this machine and how to mend them."""

"""Corrections for tokens that another policy sampled."""

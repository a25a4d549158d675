"""Roles: an engine and the calls the algorithm makes on it."""

"""A simulation of asynchronous runs."""

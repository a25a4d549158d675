"""Find out what prevents training on a machine, and how to fix it."""

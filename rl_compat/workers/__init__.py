"""Workers of the roles: an engine and the calls that the algorithm makes on it."""

"""Memory of each phase."""

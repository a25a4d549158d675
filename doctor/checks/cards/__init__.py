"""Checks of the cards: visible, reachable, free, of the right kind."""

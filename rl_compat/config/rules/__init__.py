"""Rules of settings: ranges, conflicts, settings without effect."""

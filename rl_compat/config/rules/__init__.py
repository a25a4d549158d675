"""Rules that settings obey: ranges, conflicts, settings without effect."""

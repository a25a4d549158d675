"""What the user asked for: TOML, key=value and verl's keys."""

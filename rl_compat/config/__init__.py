"""Settings: declarations, TOML, `key=value` arguments and rules."""

"""Profiles: which choices suit which hardware, as TOML."""

"""Commands, scripts and YAML files of verl as settings."""

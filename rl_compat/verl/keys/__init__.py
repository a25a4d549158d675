"""The keys of verl and what each becomes."""

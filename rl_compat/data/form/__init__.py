"""The forms of rows: columns, conversations, and verl's schema."""

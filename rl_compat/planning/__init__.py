"""Facts and wishes turned into a Plan."""

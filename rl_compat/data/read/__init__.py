"""Reading rows from files, the hub and Python."""

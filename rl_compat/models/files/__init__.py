"""Model files: find, download, convert, check and write them."""

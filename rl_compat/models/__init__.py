"""Models and tokenizers: find, convert, load and export them."""

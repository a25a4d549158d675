"""The experience buffer: groups of responses that are trained on more than once, and the record of all of them."""

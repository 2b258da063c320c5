"""Hostile calls of the command line: `make fuzz` makes them all, a test a few of them."""

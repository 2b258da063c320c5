"""A small federated classifier of digits."""

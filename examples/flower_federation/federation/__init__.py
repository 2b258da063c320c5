"""A federation of dosimeter's as a Flower app."""

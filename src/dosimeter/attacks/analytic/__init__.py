"""Solving for the image instead of searching for it.

first_layer   the layer that sees the image first      ratio    a fully connected one, solved on its own
straight      a network read as layers in a row        layers   solved from the last layer to the first
system        the linear equations of one layer        fill     what an image is where they leave it open
certificate   whether an image explains the update     attack   the attack that chooses among these
"""

from dosimeter.attacks.analytic.attack import Analytic

__all__ = ["Analytic"]

"""Flower and dosimeter: `from dosimeter.flower import Keep`; the parts are in `federated/flower`."""

from dosimeter.federated.flower import *  # noqa: F403
from dosimeter.federated.flower import __all__ as __all__

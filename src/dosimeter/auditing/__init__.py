"""One setting -> records: victims take a step, an attack reads the update, metrics compare.

The truth meets the attack's images only in `judge`, after the attack has returned.
"""

from dosimeter.auditing.run import Interrupted, Result, audit, estimate, reconstruct
from dosimeter.auditing.target import make_target

__all__ = ["Interrupted", "Result", "audit", "estimate", "make_target", "reconstruct"]

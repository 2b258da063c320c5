"""One setting -> records: victims take a step, an attack reads the update, metrics compare.

The truth meets the attack's images only in `judge`, after the attack has returned.
"""

from dosimeter.auditing.judge import Yardstick
from dosimeter.auditing.panel import Contender, Trial, audit_panel, conclude, contenders
from dosimeter.auditing.result import Interrupted, Result
from dosimeter.auditing.run import audit, estimate, perform, reconstruct
from dosimeter.auditing.setting import Setting
from dosimeter.auditing.target import make_target

__all__ = [
    "Contender",
    "Interrupted",
    "Result",
    "Setting",
    "Trial",
    "Yardstick",
    "audit",
    "audit_panel",
    "conclude",
    "contenders",
    "estimate",
    "make_target",
    "perform",
    "reconstruct",
]

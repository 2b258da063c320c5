"""One setting -> records: victims take a step, an attack reads the update, metrics compare.

The truth meets the attack's images only in `judge`, after the attack has returned.
"""

from dosimeter.auditing.captured import audit_update, examine
from dosimeter.auditing.contenders import Contender, contenders
from dosimeter.auditing.judge import Yardstick
from dosimeter.auditing.panel import Trial, audit_panel, conclude
from dosimeter.auditing.result import Captured, Interrupted, InterruptedCapture, Outcome, Result
from dosimeter.auditing.run import audit, estimate, perform
from dosimeter.auditing.seeing import Capture, reconstruct
from dosimeter.auditing.setting import Setting
from dosimeter.auditing.target import make_target

__all__ = [
    "Capture",
    "Captured",
    "Contender",
    "Interrupted",
    "InterruptedCapture",
    "Outcome",
    "Result",
    "Setting",
    "Trial",
    "Yardstick",
    "audit",
    "audit_panel",
    "audit_update",
    "conclude",
    "contenders",
    "estimate",
    "examine",
    "make_target",
    "perform",
    "reconstruct",
]

"""One setting -> records: victims take a step, an attack reads the update, metrics compare.

The truth meets the attack's images only in `judge`, after the attack has returned.
"""

from dosimeter.attacks import AUTO
from dosimeter.auditing.captured.captured import examine
from dosimeter.auditing.captured.seeing import Capture, reconstruct
from dosimeter.auditing.captured.survey import Entry, Survey
from dosimeter.auditing.panel.contenders import Contender, contenders
from dosimeter.auditing.panel.panel import audit_all, audit_panel, conclude, estimate_panel, made_by
from dosimeter.auditing.records import Finding, ImageRecord, Summary
from dosimeter.auditing.result import Captured, Interrupted, InterruptedCapture, Outcome, Result, Trial
from dosimeter.auditing.run import estimate, explain, perform
from dosimeter.auditing.score import Scoring, rescore
from dosimeter.auditing.setting import Audit, Resources, Updates, part
from dosimeter.auditing.verbs import audit, auto

__all__ = [
    "AUTO",
    "Audit",
    "Capture",
    "Captured",
    "Contender",
    "Entry",
    "Finding",
    "ImageRecord",
    "Interrupted",
    "InterruptedCapture",
    "Outcome",
    "Result",
    "Resources",
    "Scoring",
    "Summary",
    "Survey",
    "Trial",
    "Updates",
    "audit",
    "audit_all",
    "audit_panel",
    "auto",
    "conclude",
    "contenders",
    "estimate",
    "estimate_panel",
    "examine",
    "explain",
    "made_by",
    "part",
    "perform",
    "reconstruct",
    "rescore",
]

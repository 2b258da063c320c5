"""dosimeter measures how much of a client's private data can be read out of the update it shares.

import dosimeter as dm

victims = dm.pick(dm.load("mnist-5k", size=32), 8)
result = dm.audit(model, victims, attack=dm.presets.inverting_gradients())
print(result.summary())
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dosimeter import clients, defenses, metrics, models, servers
    from dosimeter.attacks import Attack, AverageOrders, GuessSteps, Search, Stop, labels, presets
    from dosimeter.attacks.search import likelihoods, masks, optimisers, priors, schedules, starts
    from dosimeter.auditing import (
        Audit,
        Capture,
        Captured,
        Interrupted,
        Resources,
        Result,
        Scoring,
        Updates,
        audit,
        perform,
        reconstruct,
        rescore,
    )
    from dosimeter.auditing.linting.lint import lint
    from dosimeter.auditing.verbs import captured, panel
    from dosimeter.data import Dataset, load, partition, pick, pick_decoys
    from dosimeter.defenses import Defense
    from dosimeter.doses import dose
    from dosimeter.errors import DosimeterError
    from dosimeter.federated import Federation, Protocol, train
    from dosimeter.metrics import Metric
    from dosimeter.reports import report
    from dosimeter.store import read
    from dosimeter.sweeps import sweep
    from dosimeter.types import ThreatModel, Victims
else:
    from dosimeter.lazy import importer

    __getattr__ = importer(__name__, __file__)

__version__ = version("dosimeter")

__all__ = [
    "Attack",
    "Audit",
    "AverageOrders",
    "Capture",
    "Captured",
    "Dataset",
    "Defense",
    "DosimeterError",
    "Federation",
    "GuessSteps",
    "Interrupted",
    "Metric",
    "Protocol",
    "Resources",
    "Result",
    "Scoring",
    "Search",
    "Stop",
    "ThreatModel",
    "Updates",
    "Victims",
    "audit",
    "captured",
    "clients",
    "defenses",
    "dose",
    "labels",
    "likelihoods",
    "lint",
    "load",
    "masks",
    "metrics",
    "models",
    "optimisers",
    "panel",
    "partition",
    "perform",
    "pick",
    "pick_decoys",
    "presets",
    "priors",
    "read",
    "reconstruct",
    "report",
    "rescore",
    "schedules",
    "servers",
    "starts",
    "sweep",
    "train",
]

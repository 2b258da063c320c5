"""Federated training: rounds in this process, and what each of them would tell an attacker.

protocol     who takes part and how each trains; the papers' own by name
federation   what server and clients agree on
client       one client's round         server   choosing, averaging, testing
setup        a federation in words, for other processes          flower   all of it on Flower
training     the rounds, kept as they are done (`checkpoint`)   accounting   what DP-SGD has cost
audited      the model on its way, as audits take it
kept         what a Flower server kept of its clients   facts   how they trained
survey       the audit of all of it, by a plan          update  of one of them
"""

from dosimeter.federated.audited import as_audited
from dosimeter.federated.client import Fit, fit
from dosimeter.federated.federation import Federation, State
from dosimeter.federated.protocol import BY_NAME, Protocol
from dosimeter.federated.server import average, chosen, evaluate, validate
from dosimeter.federated.training import Training, train

__all__ = [
    "BY_NAME",
    "Federation",
    "Fit",
    "Protocol",
    "State",
    "Training",
    "as_audited",
    "average",
    "chosen",
    "evaluate",
    "fit",
    "train",
    "validate",
]

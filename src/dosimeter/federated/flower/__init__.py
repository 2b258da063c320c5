"""Federations on Flower: ours as its apps, and the audit of apps that are not ours.

client     our clients as a ClientApp         server   our server as a ServerApp
defend     a defense for clients of your own app          keep   what a server sees, on disk
kept       reading that again and attacking it            here   both apps in this process, without a network
"""

from importlib.util import find_spec

from dosimeter.errors import SettingError

if find_spec("flwr") is None:
    raise SettingError("Flower is not installed; run pip install 'dosimeter[flower]'.")

from dosimeter.federated.flower.client import client_app
from dosimeter.federated.flower.defend import defend
from dosimeter.federated.flower.here import Here, run_here
from dosimeter.federated.flower.keep import Keep
from dosimeter.federated.flower.kept import Kept, audit_kept, read_kept
from dosimeter.federated.flower.server import Rounds, server_app
from dosimeter.federated.setup import Setup

__all__ = [
    "Here",
    "Keep",
    "Kept",
    "Rounds",
    "Setup",
    "audit_kept",
    "client_app",
    "defend",
    "read_kept",
    "run_here",
    "server_app",
]

"""Federations on Flower: ours as its apps, and the audit of apps that are not ours.

client     our clients as a ClientApp         server   our server as a ServerApp
defend     a defense for clients of your own app          keep   what a server sees, on disk
here       both apps in this process, without a network

What was kept is read and audited by `federated.kept` and `federated.survey`, for which Flower need not be there.
"""

from importlib.util import find_spec

from dosimeter.errors import SettingError

if find_spec("flwr") is None:
    raise SettingError("Flower is not installed; run pip install 'dosimeter[flower]'.")

from dosimeter.federated.flower.client import client_app
from dosimeter.federated.flower.defend import defend
from dosimeter.federated.flower.here import Here, run_here
from dosimeter.federated.flower.keep import Keep
from dosimeter.federated.flower.server import Rounds, server_app
from dosimeter.federated.kept import Kept, read_kept
from dosimeter.federated.plan import Beside, Pool, Which
from dosimeter.federated.setup import Setup
from dosimeter.federated.survey import audit

__all__ = [
    "Beside",
    "Here",
    "Keep",
    "Kept",
    "Pool",
    "Rounds",
    "Setup",
    "Which",
    "audit",
    "client_app",
    "defend",
    "read_kept",
    "run_here",
    "server_app",
]

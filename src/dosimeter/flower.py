"""Audit and defend your own Flower app: `defend` for its clients, `Keep` for its server."""

from dosimeter.federated.flower import (
    Here,
    Keep,
    Kept,
    Rounds,
    Setup,
    audit_kept,
    client_app,
    defend,
    read_kept,
    run_here,
    server_app,
)

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

"""Each node is the client of its partition-id."""

from dosimeter.flower import client_app

app = client_app()

"""FedAvg over the clients that the protocol chooses."""

from dosimeter.flower import server_app

app = server_app()

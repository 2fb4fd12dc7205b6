"""The HTTP API: what every request passes, and the routes."""

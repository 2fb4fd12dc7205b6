"""The supervisor: keeps the controller and the gateway of one machine running. Knows neither's code."""

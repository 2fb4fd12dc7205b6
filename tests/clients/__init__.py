"""Programs that others wrote, against the gateway and the engine: `make test-clients`."""

"""What the server tells of its requests: counts and times for Prometheus, spans for a collector."""

"""A real Kubernetes on one machine, for tests: programs, API server, cluster, images."""

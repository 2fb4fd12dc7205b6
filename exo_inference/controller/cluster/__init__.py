"""The controllers of a cluster: election, shared secrets and probes."""

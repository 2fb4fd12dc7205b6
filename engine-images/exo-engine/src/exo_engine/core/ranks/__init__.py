"""Processes that share the layers of one model."""

"""The controller of one machine, put together."""

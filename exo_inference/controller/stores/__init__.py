"""Where desired state, status, operations and events are kept: one contract, one file per store."""

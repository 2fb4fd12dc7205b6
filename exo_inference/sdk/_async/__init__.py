"""The asynchronous client. `_sync/` is generated from these files by `scripts/generate_sync.py`."""

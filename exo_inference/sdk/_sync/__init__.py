"""The blocking client, generated from `_async/` by `scripts/generate_sync.py`."""

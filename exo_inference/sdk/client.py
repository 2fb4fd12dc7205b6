"""The two clients: `Client` blocks, `AsyncClient` does not; everything else about them is equal.

The asynchronous one is written (`_async/`), the other is generated from it
(`scripts/generate_sync.py`, which a test holds current); what both send and read is in `_requests.py`.
"""

from exo_inference.sdk._async.client import AsyncClient
from exo_inference.sdk._sync.client import Client

__all__ = ["AsyncClient", "Client"]

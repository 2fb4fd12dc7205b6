"""Usage: requests and tokens per deployment and key (additive: `GET /ai/usage`)."""

from __future__ import annotations

from pydantic import Field

from exo_inference.wire.base import Count, WireModel


class KeyUsage(WireModel):
    """What one key has used of one deployment, since the gateway counts.

    `requests` is by HTTP status; 499 is a client that hung up. The ids are empty for requests that were
    refused before they were known to be anybody's, the names where the object is gone. `key` is the
    deployment's name for the key that the deployment has of its own, whose id is the deployment's.
    """

    deployment_id: str
    key_id: str
    deployment: str = ""
    key: str = ""
    requests: dict[str, Count] = Field(default_factory=dict)
    prompt_tokens: Count = 0
    completion_tokens: Count = 0


class UsageList(WireModel):
    """Answer of `GET /ai/usage`."""

    usage: list[KeyUsage]

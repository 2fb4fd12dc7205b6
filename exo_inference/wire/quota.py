"""Quotas: answers of `/quota` and `/ai/quota`."""

from __future__ import annotations

from exo_inference.wire.base import Count, WireModel


class Quota(WireModel):
    """Use and limit of one resource; a limit of -1 is none (the API's own convention)."""

    resource: str
    usage: Count
    limit: Count


class QuotaList(WireModel):
    """Answer of `GET /quota`."""

    quotas: list[Quota]


class ConsumptionQuota(WireModel):
    """Answer of `GET /ai/quota`; null is unlimited."""

    quota_uom_per_minute: Count | None = None

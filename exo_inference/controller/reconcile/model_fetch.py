"""One fetch of a model's files, and what it means for the model's conditions. Pure but for `Fetch`.

`model.py` runs fetches and writes what the functions here say.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from exo_inference.controller.conditions import checking_conditions, condition
from exo_inference.errors import ExoError
from exo_inference.hub.base import FetchCancelled, ResolvedModel
from exo_inference.resources import Condition, ModelStatus, find_condition, is_true

FINAL_REASON = "NotUsable"
"""Reason of a failure that trying again does not help."""

_GIB = 1024**3


class Fetch:
    """One running or finished fetch.

    Attributes:
        resolved: what is being fetched, once known.
        in_place: nothing is downloaded: the files are checked where they are.
        present_bytes: bytes present so far, None until the source says; written from other threads.
        path: where an engine can load from, when done.
        error: why it failed.
        cancelled: set to stop it.
    """

    def __init__(self, *, in_place: bool = False) -> None:
        self.in_place = in_place
        self.resolved: ResolvedModel | None = None
        self.present_bytes: int | None = None
        self.path: Path | None = None
        self.error: ExoError | None = None
        self.cancelled = False
        self.task: asyncio.Task[None] | None = None

    def report(self, present_bytes: int) -> None:
        """Take the progress; the source calls this from any thread."""
        if self.cancelled:
            raise FetchCancelled("the model is being deleted")
        self.present_bytes = present_bytes


def format_size(present_bytes: int, total_bytes: int) -> str:
    """Say how much is there: `1.2 of 15.0 GiB (8 %)`."""
    units = (("GiB", _GIB), ("MiB", 1024**2), ("KiB", 1024))
    unit, factor = next((u for u in units if total_bytes >= u[1]), ("B", 1))
    percent = 100 * present_bytes // total_bytes if total_bytes else 100
    digits = 0 if factor == 1 else 1
    present, total = present_bytes / factor, total_bytes / factor
    return f"{present:.{digits}f} of {total:.{digits}f} {unit} ({min(percent, 100)} %)"


def status_fields(fetch: Fetch) -> dict[str, object]:
    """Return what a fetch says about the model, as fields of its status."""
    resolved = fetch.resolved
    if resolved is None:
        return {}
    found: dict[str, object] = {
        "revision": resolved.revision,
        "size_bytes": resolved.size_bytes,
    }
    if fetch.present_bytes is not None:
        found["downloaded_bytes"] = min(fetch.present_bytes, resolved.size_bytes)
    return found


def progress_conditions(status: ModelStatus, fetch: Fetch) -> list[Condition]:
    """Return the conditions of a fetch that goes on; why the last one failed stays until it does."""
    if fetch.in_place:
        return checking_conditions()
    if fetch.resolved is None or fetch.present_bytes is None:
        resolved = find_condition(status.conditions, "Resolved")
        if fetch.resolved is not None:
            resolved = condition("Resolved", True, "Resolved")
        elif resolved is None:
            resolved = condition("Resolved", False, "Resolving", "asking its source")
        before = find_condition(status.conditions, "Downloaded")
        kept = [] if before is None else [before]
        return [resolved, *kept, condition("Ready", False, "NotFetched")]
    size = format_size(fetch.present_bytes, fetch.resolved.size_bytes)
    return [
        condition("Resolved", True, "Resolved"),
        condition("Downloaded", False, "Downloading", f"downloading {size}"),
        condition("Ready", False, "Downloading"),
    ]


def ready_conditions() -> list[Condition]:
    """Return the conditions of a model whose files are all there."""
    return [
        condition("Resolved", True, "Resolved"),
        condition("Downloaded", True, "Downloaded", "all files are there and checked"),
        condition("Ready", True, "Ready", "ready to be deployed"),
    ]


def failure_conditions(
    status: ModelStatus, fetch: Fetch, *, delay: float | None
) -> list[Condition]:
    """Return the conditions of a failed fetch; `delay` is when it is tried again, None for never."""
    assert fetch.error is not None
    is_resolved = fetch.resolved is not None or is_true(status.conditions, "Resolved")
    return failure_of(fetch.error, is_resolved=is_resolved, delay=delay)


def failure_of(error: ExoError, *, is_resolved: bool, delay: float | None) -> list[Condition]:
    """Return the conditions of a model whose files did not come.

    Args:
        error: why.
        is_resolved: the model was found.
        delay: when it is tried again; None for never.
    """
    text = error.text
    if delay is not None:
        text = f"{text.rstrip('.')}; trying again in {delay:.0f} s"
    reason = type(error).__name__
    found = [
        condition("Resolved", is_resolved, "Resolved" if is_resolved else reason, text),
        condition("Ready", False, reason, text),
    ]
    if is_resolved:
        found.insert(1, condition("Downloaded", False, reason, text))
    if delay is None:
        found.append(condition("Failed", True, FINAL_REASON, text))
    return found

"""What the server asks such a core for. No torch: both processes import it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolingRequest:
    """One text, or one pair of texts, to be embedded or scored."""

    request_id: str
    token_ids: tuple[int, ...]
    second_from: int | None = None
    """Where the second text of a pair begins, for models that are told; None: nothing is told."""
    num_dimensions: int | None = None
    """To which the vector is cut; None: all."""
    is_activated: bool = True
    """A vector gets length 1, a score passes a sigmoid."""
    priority: int = 0
    """Lower runs earlier under the `priority` policy."""
    group: str = ""
    """Texts of one HTTP request have one, and groups take turns."""

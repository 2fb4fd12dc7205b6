"""What replicas take of the memory of the one machine they share, and whether more of them fit. Pure.

Admission counts here what everything that it admitted will take; the local platform asks here before
each start, and for the size of the KV cache that it gives to an engine on the CPU. On a cluster the
scheduler does all of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MIB = 2**20
_GIB = 2**30

PROCESS_BYTES = 384 * MIB
"""What the processes of one engine hold for themselves, without weights, activations and cache: 316
MiB measured for exo-engine with PyTorch 2.9 on a CPU, and room for requests."""

_TOKENIZER_BYTES = 16 * MIB
_TOKENIZER_BYTES_PER_TOKEN = 2 * 1024
"""What a tokenizer takes besides, for each token of its vocabulary: the API process has one, and the process
that tokenizes (16 MiB itself) has another. Both, at the worst moment, which is while one of them is loaded:
81 MiB measured with 32,000 tokens, 258 MiB with 128,000, 293 MiB with 152,000, 497 MiB with 256,000
(`benchmarks/tokenizer_memory.py` of exo-engine)."""

STAND_IN_BYTES = PROCESS_BYTES + 64 * MIB
"""What a replica holds of the machine's memory while its GPUs are simulated, or do the work."""

_MOST_UNKNOWN_CACHE = _GIB
_LEAST_UNKNOWN_CACHE = 64 * MIB
_MAX_BYTES = 2**60
_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class ReplicaNeed:
    """What one replica takes of the machine's memory.

    Attributes:
        fixed_bytes: processes, weights and activations, at the pessimistic end of the estimate.
        cache_bytes: the least KV cache: what was asked for, or one request of full length.
        most_cache_bytes: more cache would never be used, or was not asked for.
    """

    fixed_bytes: int
    cache_bytes: int = 0
    most_cache_bytes: int = 0

    @property
    def least_bytes(self) -> int:
        """What it cannot do without."""
        return self.fixed_bytes + self.cache_bytes

    @property
    def text(self) -> str:
        """As it is kept in an annotation; `read_need` reads it."""
        return f"{self.fixed_bytes}/{self.cache_bytes}/{self.most_cache_bytes}"


def read_need(text: str) -> ReplicaNeed | None:
    """Read what `ReplicaNeed.text` wrote; None for anything else."""
    words = text.split("/")
    if len(words) != 3 or not all(_NUMBER.fullmatch(word) for word in words):
        return None
    numbers = [int(word) for word in words]
    return ReplicaNeed(*numbers) if max(numbers) <= _MAX_BYTES else None


def tokenizer_bytes(vocab_size: int) -> int:
    """Return what the tokenizers of one engine hold of the machine's memory at most."""
    return _TOKENIZER_BYTES + _TOKENIZER_BYTES_PER_TOKEN * max(0, vocab_size)


def guess_need(model_bytes: int) -> ReplicaNeed:
    """Return a need where nothing was planned: a checkpoint of 16 bits runs in float32 on a CPU."""
    fixed = PROCESS_BYTES + 2 * model_bytes
    return ReplicaNeed(fixed, _LEAST_UNKNOWN_CACHE, _MOST_UNKNOWN_CACHE)


@dataclass(frozen=True, slots=True)
class HostRoom:
    """The memory of a machine and what our replicas have of it.

    Attributes:
        total_bytes: all of it, or of the container.
        free_bytes: what could be taken now.
        held: what the replicas of each deployment have taken already, by the deployment's uid.
        claimed: what those replicas were started with; memory they have not touched yet counts.
        num_cores: that replicas share.
    """

    total_bytes: int
    free_bytes: int
    held: Mapping[str, int] = field(default_factory=dict)
    claimed: Mapping[str, int] = field(default_factory=dict)
    num_cores: int = 1

    @property
    def reserve_bytes(self) -> int:
        """What is left to the control plane and the kernel: a 32nd, 64 MiB to 1 GiB."""
        return reserve_bytes(self.total_bytes)

    @property
    def capacity_bytes(self) -> int:
        """What all replicas together may take: what is free and what they hold."""
        return max(0, self.free_bytes + sum(self.held.values()) - self.reserve_bytes)

    def taken_by(self, uid: str) -> int:
        """Return what the replicas of a deployment have, or have been promised at their start."""
        return max(self.held.get(uid, 0), self.claimed.get(uid, 0))


def reserve_bytes(total_bytes: int) -> int:
    """Return what is never given to replicas."""
    return min(_GIB, max(64 * MIB, total_bytes // 32))


@dataclass(frozen=True, slots=True)
class Share:
    """What one deployment was admitted with."""

    uid: str
    need: ReplicaNeed
    replicas: int

    @property
    def planned_bytes(self) -> int:
        """What all its replicas take at least."""
        return self.need.least_bytes * self.replicas


def left_bytes(room: HostRoom, others: Iterable[Share]) -> int:
    """Return what is left for one more deployment beside all that was admitted; negative if overdrawn."""
    planned = sum(max(share.planned_bytes, room.taken_by(share.uid)) for share in others)
    return room.capacity_bytes - planned


def count_fitting(room: HostRoom, others: Iterable[Share], need: ReplicaNeed) -> int:
    """Return how many replicas of that need fit beside all that was admitted."""
    return max(0, left_bytes(room, others)) // max(1, need.least_bytes)


def choose_cache(need: ReplicaNeed, left: int, num_sharing: int) -> int:
    """Return the KV cache of one replica: half of what is left, in equal parts.

    Args:
        need: of the replica.
        left: what would be left if all that are planned had their least.
        num_sharing: replicas that are planned and have no cache yet, this one included.
    """
    share = max(0, left) // (2 * max(1, num_sharing))
    return max(need.cache_bytes, min(need.most_cache_bytes, need.cache_bytes + share))


def format_size(num_bytes: int) -> str:
    """Return a size for people: `1.4 GiB`, `380 MiB`."""
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB else f"{num_bytes / MIB:.0f} MiB"

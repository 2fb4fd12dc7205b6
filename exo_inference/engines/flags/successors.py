"""What took the place of flags that were removed. Data, and the one rule that reads it.

`reader.py` names the successor in its refusal; `migration.py` writes it. A flag of the catalogue
that ends with some release and has no entry here has no successor: it can be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exo_inference.engines.flags.catalogue import ReleaseFlags


@dataclass(frozen=True, slots=True)
class Successor:
    """What to write instead of a removed flag.

    Attributes:
        flag: the flag that takes the same values under another name; None if there is none.
        instead: whole flags that do what the removed one did, whatever its value.
        by_value: whole flags for each of its values; an empty tuple means to leave it out.
        note: why it went, or what happens now.
    """

    flag: str | None = None
    instead: tuple[str, ...] = ()
    by_value: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    note: str = ""

    def rewrite(self, values: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the flags to write for a use with these values; None if there are none."""
        if self.by_value:
            return self.by_value.get(values[0]) if values else None
        if self.flag is not None:
            return (self.flag, *values)
        return self.instead or None


_POOLING = ("--runner", "pooling", "--convert")

SUCCESSORS: Mapping[str, Successor] = {
    "calculate-kv-scales": Successor(note="scales of an FP8 KV cache come from the checkpoint"),
    "cuda-graph-sizes": Successor(flag="--cudagraph-capture-sizes", note="it has a new name"),
    "disable-frontend-multiprocessing": Successor(note="the server always runs apart"),
    "disable-log-requests": Successor(
        instead=("--no-enable-log-requests",), note="requests are not logged unless asked for"
    ),
    "disable-mm-preprocessor-cache": Successor(
        instead=("--mm-processor-cache-gb", "0"), note="a size of 0 turns the cache off"
    ),
    "enable-bf16x3-router-gemm": Successor(note="the engine chooses that kernel itself"),
    "enable-multimodal-encoder-data-parallel": Successor(
        instead=("--mm-encoder-tp-mode", "data"), note="it has become a mode"
    ),
    "logits-processor-pattern": Successor(note="it had no effect in the present engine"),
    "max-long-partial-prefills": Successor(note="concurrent partial prefills are gone"),
    "max-num-partial-prefills": Successor(note="concurrent partial prefills are gone"),
    "override-attention-dtype": Successor(note="attention computes in the format of --dtype"),
    "swap-space": Successor(
        note="the engine recomputes instead of swapping; --kv-offloading-size keeps KV blocks in main memory"
    ),
    "task": Successor(
        by_value={
            "auto": (),
            "generate": ("--runner", "generate"),
            "transcription": ("--runner", "generate"),
            "draft": ("--runner", "draft"),
            "embed": (*_POOLING, "embed"),
            "embedding": (*_POOLING, "embed"),
            "classify": (*_POOLING, "classify"),
            "score": (*_POOLING, "classify"),
            "reward": ("--runner", "pooling"),
        },
        note="--runner and --convert say it in two words",
    ),
    "use-gpu-for-pooling-score": Successor(
        instead=("--enable-flash-late-interaction",), note="it has a new name"
    ),
}


def rewrite_removed(
    name: str, values: tuple[str, ...], release: ReleaseFlags
) -> tuple[str, ...] | None:
    """Return the flags that do in a release what a removed flag did; None if there are none."""
    successor = SUCCESSORS.get(name)
    written = successor.rewrite(values) if successor is not None else None
    if not written:
        return None
    exists = written[0] in release.by_spelling or written[0] in release.by_no_form
    return written if exists else None

"""What llama-server is asked, read from its flags, and the contexts that follow. Pure.

Source: common/arg.cpp, common/common.h, src/llama-context.cpp and tools/server/server.cpp of llama.cpp b11243 and
0c1e5709. `planning.py` reads a setting once; all other modules of the package take it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exo_inference.planner.gpu_catalog import MIB

MOST_SEQUENCES = 256
"""`LLAMA_MAX_SEQ`."""
_MOST_CELLS = 2**31 - 1
_AUTO_SEQUENCES = 4
_CELLS = 256
_MOST_PARTS = 15
_SHARE = re.compile(r"[0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12}")
"""A share as people write one; llama-server ends at values beyond float32, of which sums are none."""
BLOCKS: Mapping[str, tuple[int, int]] = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20),
    "iq4_nl": (32, 18), "q5_0": (32, 22), "q5_1": (32, 24),
}  # fmt: skip
"""Types of the cache: the elements of a block, and its bytes (ggml-common.h)."""
ALL = _MOST_CELLS


class WrongFlag(ValueError):
    """A value with which llama-server does not start, or that means nothing: such a flag is refused.

    Attributes:
        name: of the flag.
    """

    def __init__(self, name: str, finding: str) -> None:
        super().__init__(f"--{name} {finding}")
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSetting:
    """What memory depends on.

    Attributes:
        context: `--ctx-size`; 0 is the model's own.
        sequences: requests at once.
        unified: they share one cache.
        gpu_layers: how many units run on GPUs, the output being one; None: what --fit finds.
        cpu_moe: the experts of so many layers stay in main memory.
        splits: the shares of the GPUs; empty: equal ones.
        only_gpu: the one that has everything, with `--split-mode none`; None: layers are split.
        fits: llama-server shortens a context that nobody asked for, and moves layers.
        fit_targets: what it leaves free of each GPU then, in bytes.
        fit_context: the shortest context it takes; `--ctx-size 0` asks for all of the model's.
        all_outputs: room for the logits of every token of a batch: builds of before June 2026, and other programs.
        wide_masks: flash attention has masks of four bytes beside those of two: the same builds.
    """

    context: int = 0
    batch: int = 2048
    ubatch: int = 512
    sequences: int = 4
    unified: bool = True
    full_windows: bool = False
    flash_attention: bool = True
    key_type: str = "f16"
    value_type: str = "f16"
    offloads_cache: bool = True
    offloads_ops: bool = True
    gpu_layers: int | None = ALL
    cpu_moe: int = 0
    splits: tuple[float, ...] = ()
    only_gpu: int | None = None
    fits: bool = True
    fit_targets: tuple[int, ...] = (1024 * MIB,)
    fit_context: int = 4096
    all_outputs: bool = False
    wide_masks: bool = False

    @property
    def moves_layers(self) -> bool:
        """Whether `--fit` moves layers to main memory: not where a flag says where any of them are."""
        is_split = len(self.splits) > 1 and self.only_gpu is None
        return self.fits and self.gpu_layers is None and not self.cpu_moe and not is_split


@dataclass(frozen=True, slots=True)
class Context:
    """The contexts of a start.

    Attributes:
        total: cells of the cache without windows, of all streams.
        per_sequence: the longest request.
        streams: how many caches there are: one that all share, or one for each sequence.
        batch: tokens that are computed at once.
    """

    total: int
    per_sequence: int
    sequences: int
    streams: int
    batch: int

    @property
    def cells(self) -> int:
        """Cells of one stream."""
        return self.per_sequence


def pad(cells: int) -> int:
    """Return cells as llama.cpp rounds them up."""
    return -(-cells // _CELLS) * _CELLS


def resolve(setting: LlamaSetting, trained: int, context: int | None = None) -> Context:
    """Return the contexts of a start (`llama_context::llama_context`).

    Args:
        setting: what was asked.
        trained: the model's own context.
        context: instead of the one that was asked for.
    """
    asked = setting.context if context is None else context
    total = pad(asked or max(1, trained))
    streams = 1 if setting.unified else setting.sequences
    each = pad(max(1, total // streams))
    total = each * streams
    batch = min(total, setting.batch)
    return Context(total, each, setting.sequences, streams, min(batch, setting.ubatch or batch))


def read_setting(values: Mapping[str, Any], gpu_count: int) -> LlamaSetting:
    """Return what flags set.

    Args:
        values: by the names of flags.
        gpu_count: GPUs of the replica.

    Raises:
        WrongFlag: a value that llama-server does not start with.
    """
    parallel = _whole(values, "parallel", -1, least=-1, most=MOST_SEQUENCES)
    if parallel == 0:
        raise WrongFlag(
            "parallel", "is 0, expected 1 or more, or -1 for as many as llama-server takes"
        )
    sequences = parallel if parallel > 0 else _AUTO_SEQUENCES
    unified = values.get("kv-unified")
    context = _whole(values, "ctx-size", 0)
    per_slot = values.get("kv-unified-per-slot")
    if per_slot is not None:
        each = _whole(values, "kv-unified-per-slot", 0, least=1)
        unified, context = True, context or min(_MOST_CELLS, each * sequences)
    is_auto = parallel < 0
    return LlamaSetting(
        context=context,
        batch=_whole(values, "batch-size", 2048, least=1),
        ubatch=_whole(values, "ubatch-size", 512),
        sequences=sequences,
        unified=is_auto if unified is None else bool(unified) or is_auto,
        full_windows=values.get("swa-full") is True,
        flash_attention=_word(values, "flash-attn", "auto") not in _OFF,
        key_type=_cache_type(values, "cache-type-k"),
        value_type=_cache_type(values, "cache-type-v"),
        offloads_cache=values.get("kv-offload") is not False,
        offloads_ops=values.get("op-offload") is not False,
        gpu_layers=_gpu_layers(values),
        cpu_moe=ALL if values.get("cpu-moe") is True else _whole(values, "n-cpu-moe", 0),
        splits=_splits(values, gpu_count),
        only_gpu=_only_gpu(values, gpu_count),
        fits=_word(values, "fit", "on") not in _OFF,
        fit_targets=_targets(values, gpu_count),
        fit_context=ALL if values.get("ctx-size") == 0 else _whole(values, "fit-ctx", 4096),
    )  # fmt: skip


_OFF = frozenset({"off", "0", "false", "disabled", "no"})


def check_overrides(values: Mapping[str, Any]) -> None:
    """Check the form of `--override-tensor`, whose patterns llama-server alone tries on names of tensors.

    Raises:
        WrongFlag: a part of it has no buffer.
    """
    for part in str(values.get("override-tensor", "=")).split(","):
        if "=" not in part:
            raise WrongFlag(
                "override-tensor", f"has {part!r:.40}, expected PATTERN=BUFFER, such as exps=CPU"
            )


def _whole(
    values: Mapping[str, Any], name: str, default: int, *, least: int = 0, most: int = _MOST_CELLS
) -> int:
    value = values.get(name, default)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != value or not least <= value <= most or int(value) != value:
        raise WrongFlag(name, f"is {value!r:.40}, expected a whole number from {least} to {most}")
    return int(value)


def _word(values: Mapping[str, Any], name: str, default: str) -> str:
    return str(values.get(name, default)).lower()


def _cache_type(values: Mapping[str, Any], name: str) -> str:
    kind = _word(values, name, "f16")
    if kind not in BLOCKS:
        raise WrongFlag(name, f"is {kind!r:.40}, expected one of {', '.join(BLOCKS)}")
    return kind


def _gpu_layers(values: Mapping[str, Any]) -> int | None:
    """Return how many layers are asked for; the platform itself says 999, unless a flag says otherwise."""
    word = str(values.get("gpu-layers", "999"))
    if word == "auto":
        return None
    if word == "all":
        return ALL
    if not re.fullmatch(r"-?[0-9]{1,9}", word):
        raise WrongFlag("gpu-layers", f"is {word!r:.40}, expected a number, auto or all")
    number = int(word)
    if number == -1:
        return None
    return ALL if number < 0 else number


def _parts(text: str) -> list[str]:
    """Return the parts of a list of GPUs; nothing of one that is longer than llama-server takes (`llama_max_devices`)."""
    parts = re.split(r"[,/]+", text[: _MOST_PARTS * 40])
    parts = parts if parts[-1] else parts[:-1]
    return parts if len(parts) <= _MOST_PARTS and len(text) <= _MOST_PARTS * 40 else []


def _splits(values: Mapping[str, Any], gpu_count: int) -> tuple[float, ...]:
    text = values.get("tensor-split")
    if text is None:
        return ()
    parts = _parts(str(text))
    are_shares = all(_SHARE.fullmatch(each) for each in parts)
    shares = [float(each) for each in parts] if are_shares else []
    shares = (shares + [0.0] * gpu_count)[:gpu_count]
    if not sum(shares):
        raise WrongFlag(
            "tensor-split", f"is {text!r:.40}, expected the shares of GPUs, such as 3,1"
        )
    return tuple(shares)


def _only_gpu(values: Mapping[str, Any], gpu_count: int) -> int | None:
    if _word(values, "split-mode", "layer") != "none":
        return None
    return _whole(values, "main-gpu", 0, most=gpu_count - 1)


def _targets(values: Mapping[str, Any], gpu_count: int) -> tuple[int, ...]:
    """Return what `--fit` leaves free of each GPU; one figure is that of all."""
    text = str(values.get("fit-target", "1024"))
    parts = _parts(text)
    if not parts or not all(re.fullmatch(r"[0-9]{1,9}", each) for each in parts):
        raise WrongFlag(
            "fit-target", f"is {text!r:.40}, expected MiB, or MiB of each GPU such as 1024,512"
        )
    sizes = [int(each) * MIB for each in parts]
    return tuple(
        (sizes * gpu_count if len(sizes) == 1 else sizes + [1024 * MIB] * gpu_count)[:gpu_count]
    )

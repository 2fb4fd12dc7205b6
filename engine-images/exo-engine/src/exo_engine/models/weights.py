"""Fills a model's layers from a checkpoint, after checking that the two belong together.

Every tensor the architecture needs must be there with its shape, and nothing may be there that the
architecture has no place for: silently ignoring a bias gives fluent nonsense.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import torch

from exo_engine.errors import ModelUnusable
from exo_engine.foreign_files import shown
from exo_engine.layers import Layer, Slot
from exo_engine.models.checkpoint import TensorEntry, read_checkpoint
from exo_engine.models.decoder import Decoder
from exo_engine.weight_formats import PLAIN
from exo_engine.weight_formats.base import NotFinite, Stored

logger = logging.getLogger(__name__)

_DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
}
# Buffers that older checkpoints carry and that are computed here.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)


class Spec(Protocol):
    """What loading needs to know of a model."""

    @property
    def architecture(self) -> str:
        """As in config.json."""

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint may have this tensor although nothing here needs it."""


class Model(Protocol):
    """What has weights to be filled."""

    @property
    def weighted_layers(self) -> Sequence[Layer]:
        """Every layer with weights, in the order of the computation."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights; tied ones count once."""


def check_checkpoint(
    model_dir: Path,
    spec: Spec,
    weight_format: str = PLAIN,
    make: Callable[..., Model] = Decoder,
) -> dict[str, TensorEntry]:
    """Return the tensors to load, once it is sure that they fit the model.

    Args:
        model_dir: where the files are.
        spec: the model.
        weight_format: that of its linear layers, which says how they are stored.
        make: makes the model of its spec.

    Raises:
        ModelUnusable: a tensor is missing, unexpected, of the wrong shape or of an unknown dtype.
    """
    entries = _as_part_of_a_whole(read_checkpoint(model_dir))
    expected = _expected_tensors(model_dir, spec, weight_format, entries, make)
    missing = [name for name in expected if name not in entries]
    if missing:
        raise ModelUnusable(
            f"the checkpoint in {model_dir} lacks {_list(missing)}, which {spec.architecture} "
            "with this config.json needs",
            hint="Check that config.json belongs to these files, or download the model again.",
        )
    unexpected = [name for name in entries if name not in expected and not _is_ignored(name, spec)]
    if unexpected:
        raise ModelUnusable(
            f"the checkpoint in {model_dir} has {_list(unexpected)}, for which "
            f"{spec.architecture} with this config.json has no place",
            hint="The checkpoint may be quantized, an adapter, or of another architecture.",
        )
    for name, stored in expected.items():
        entry = entries[name]
        if entry.shape != stored.shape:
            raise ModelUnusable(
                f"{entry.path}: tensor {name} has shape {list(entry.shape)}, expected "
                f"{list(stored.shape)} from config.json",
                hint="Check that config.json belongs to these files.",
            )
        if entry.dtype not in stored.dtypes:
            raise ModelUnusable(
                f"{entry.path}: tensor {name} has dtype {shown(entry.dtype)}, expected one of "
                f"{', '.join(stored.dtypes)}",
                hint="Use the unquantized checkpoint of the same model.",
            )
        num_bytes = math.prod(stored.shape) * _DTYPE_BYTES[entry.dtype]
        if entry.num_bytes != num_bytes:
            raise ModelUnusable(
                f"{entry.path}: tensor {name} takes {entry.num_bytes} bytes, expected "
                f"{num_bytes} for its shape",
                hint="Download the model again; the file is damaged.",
            )
    return {name: entries[name] for name in expected}


def _as_part_of_a_whole(entries: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Name the tensors of a decoder that was saved without its head as those of one with it."""
    if "embed_tokens.weight" not in entries:
        return entries
    return {f"model.{name}": entry for name, entry in entries.items()}


def _expected_tensors(
    model_dir: Path,
    spec: Spec,
    weight_format: str,
    entries: Mapping[str, TensorEntry],
    make: Callable[..., Model],
) -> dict[str, Stored]:
    try:
        sketch = make(
            spec,
            dtype=torch.float32,
            device=torch.device("meta"),
            weight_format=weight_format,
        )
    except (RuntimeError, OverflowError) as exc:  # sizes whose product overflows
        raise ModelUnusable(
            f"cannot use {model_dir / 'config.json'}: its sizes make no tensors ({str(exc)[:128]})",
            hint="Download the model again.",
        ) from exc
    return {
        name: slot.stored
        for layer in sketch.weighted_layers
        for name, slot in layer.slots_for(entries).items()
    }


def load_weights(
    model: Model, entries: Mapping[str, TensorEntry], progress: Callable[[str], None]
) -> None:
    """Fill every layer of `model` from the tensors of `entries`, reporting progress by bytes.

    Layer by layer and from mapped files, whose pages are given back after each layer, so that besides the finished
    layers no more is in memory of this process than one layer's tensors.

    Raises:
        ModelUnusable: a file changed or broke since its header was read, or what is to be quantized is not finite.
    """
    total = sum(entry.num_bytes for entry in entries.values())
    done, reported = 0, -1
    with ExitStack() as files:
        mapped: dict[Path, Any] = {}
        ranges: list[range] = []
        for layer in model.weighted_layers:
            tensors = []
            for name, slot in layer.slots_for(entries).items():
                entry = entries[name]
                tensors.append(_map_tensor(entry, mapped, files))
                _load(slot, tensors[-1], name, entry)
                done += entry.num_bytes
                percent = done * 100 // max(total, 1)
                if percent > reported:
                    reported = percent
                    progress(f"loading weights {percent} %")
            layer.finish()
            if len(ranges) < len(mapped):
                ranges = list(_mappings({str(path.resolve()) for path in mapped}))
            _return_mapped_pages(tensors, ranges)
            _return_freed_memory()
    logger.info("loaded %d tensors, %d bytes", len(entries), total)


def _load(slot: Slot, tensor: torch.Tensor, name: str, entry: TensorEntry) -> None:
    try:
        slot.load(tensor)
    except NotFinite as exc:
        raise ModelUnusable(
            f"{entry.path}: tensor {name} {exc}, and is to be quantized",
            hint="Download the model again; the file may be damaged. Without --quantization it would be loaded.",
        ) from exc


def _return_freed_memory() -> None:
    """Have the C library give the system back what loading has freed.

    Else glibc keeps up to twice the largest block that was ever freed: 14 MB beside 38 MB of INT4. Other C
    libraries have no such function.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _return_mapped_pages(tensors: Iterable[torch.Tensor], mappings: Sequence[range]) -> None:
    """Have the system take back the pages of tensors in mapped files: what they hold is read again if it is looked at."""
    advice, size = getattr(mmap, "MADV_DONTNEED", None), mmap.PAGESIZE
    for tensor in tensors:
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        first, past = -(-begin // size) * size, end // size * size
        # Never of other memory, which would be lost.
        is_mapped = any(begin in each and end <= each.stop for each in mappings)
        if advice is not None and is_mapped and first < past:
            length = ctypes.c_size_t(past - first)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), length, advice)


def _mappings(paths: Container[str]) -> Iterator[range]:
    """Yield where this process has mapped these files; nothing where the system does not say."""
    with suppress(OSError), Path("/proc/self/maps").open(errors="replace") as lines:
        for line in lines:
            words = line.rstrip("\n").split(maxsplit=5)
            if len(words) == 6 and words[5] in paths:
                first, past = (int(number, 16) for number in words[0].split("-"))
                yield range(first, past)


def _map_tensor(entry: TensorEntry, mapped: dict[Path, Any], files: ExitStack) -> torch.Tensor:
    """Return a view of one tensor in its file, whose pages are read when they are looked at."""
    from safetensors import SafetensorError, safe_open

    path = entry.path
    try:
        if path not in mapped:
            mapped[path] = files.enter_context(safe_open(path, framework="pt"))
        tensor: torch.Tensor = mapped[path].get_tensor(entry.name)
    except (SafetensorError, OSError) as exc:
        raise ModelUnusable(f"cannot load {path}: {exc}", hint="Download the model again.") from exc
    return tensor


def _is_ignored(name: str, spec: Spec) -> bool:
    return name.endswith(_IGNORED_SUFFIXES) or spec.ignores(name)


def _list(names: Iterable[str]) -> str:
    found = list(names)
    rest = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(map(shown, found[:3])) + rest

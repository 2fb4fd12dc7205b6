"""Fills a decoder's parameters from a checkpoint, after checking that the two belong together.

Every tensor the architecture needs must be there with its shape, and nothing may be there that the
architecture has no place for: silently ignoring a bias gives fluent nonsense.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from exo_engine.errors import ModelUnusable
from exo_engine.models.checkpoint import TensorEntry, read_checkpoint
from exo_engine.models.decoder import Decoder
from exo_engine.models.spec import DecoderSpec

logger = logging.getLogger(__name__)

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
# Buffers that older checkpoints carry and that are computed here.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)


def check_checkpoint(model_dir: Path, spec: DecoderSpec) -> dict[str, TensorEntry]:
    """Return the tensors to load, once it is sure that they fit the model.

    Raises:
        ModelUnusable: a tensor is missing, unexpected, of the wrong shape or of an unknown dtype.
    """
    entries = read_checkpoint(model_dir)
    expected = _expected_tensors(model_dir, spec)
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
    for name, target in expected.items():
        entry = entries[name]
        if entry.shape != tuple(target.shape):
            raise ModelUnusable(
                f"{entry.path}: tensor {name} has shape {list(entry.shape)}, expected "
                f"{list(target.shape)} from config.json",
                hint="Check that config.json belongs to these files.",
            )
        if entry.dtype not in _DTYPES:
            raise ModelUnusable(
                f"{entry.path}: tensor {name} has dtype {entry.dtype}, expected one of "
                f"{', '.join(_DTYPES)}",
                hint="Use the unquantized checkpoint of the same model.",
            )
        if entry.num_bytes != target.numel() * _DTYPES[entry.dtype].itemsize:
            raise ModelUnusable(
                f"{entry.path}: tensor {name} takes {entry.num_bytes} bytes, expected "
                f"{target.numel() * _DTYPES[entry.dtype].itemsize} for its shape",
                hint="Download the model again; the file is damaged.",
            )
    return {name: entries[name] for name in expected}


def _expected_tensors(model_dir: Path, spec: DecoderSpec) -> dict[str, torch.Tensor]:
    try:
        return Decoder(spec, dtype=torch.float32, device=torch.device("meta")).checkpoint_tensors()
    except (RuntimeError, OverflowError) as exc:  # sizes whose product overflows
        raise ModelUnusable(
            f"cannot use {model_dir / 'config.json'}: its sizes make no tensors ({str(exc)[:128]})",
            hint="Download the model again.",
        ) from exc


def load_weights(
    decoder: Decoder, entries: Mapping[str, TensorEntry], progress: Callable[[str], None]
) -> None:
    """Copy every tensor of `entries` into `decoder`, reporting progress by bytes.

    Raises:
        ModelUnusable: a file changed or broke since its header was read.
    """
    from safetensors import SafetensorError, safe_open

    targets = decoder.checkpoint_tensors()
    total = sum(entry.num_bytes for entry in entries.values())
    done, reported = 0, -1
    for path in sorted({entry.path for entry in entries.values()}):
        names = [name for name, entry in entries.items() if entry.path == path]
        try:
            with safe_open(path, framework="pt") as file:
                for name in names:
                    targets[name].copy_(file.get_tensor(name))
                    done += entries[name].num_bytes
                    percent = done * 100 // max(total, 1)
                    if percent > reported:
                        reported = percent
                        progress(f"loading weights {percent} %")
        except (SafetensorError, OSError) as exc:
            raise ModelUnusable(
                f"cannot load {path}: {exc}", hint="Download the model again."
            ) from exc
    logger.info("loaded %d tensors, %d bytes", len(entries), total)


def _is_ignored(name: str, spec: DecoderSpec) -> bool:
    return name.endswith(_IGNORED_SUFFIXES) or (name == "lm_head.weight" and spec.ties_embeddings)


def _list(names: Iterable[str]) -> str:
    shown = list(names)
    rest = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return ", ".join(shown[:3]) + rest

"""Which files of a Hub repository an engine needs: a pure choice by name.

Repositories often hold the same weights several times: for other frameworks, as one file of the
original authors, quantized for other programs. Only one copy, in safetensors, is fetched; a name with a type behind a colon
asks for a GGUF file instead (`gguf_files.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from exo_inference.foreign_files.errors import shown
from exo_inference.hub.base import PRIVATE_DIR, ModelFile, ModelUnusable
from exo_inference.hub.gguf_files import choose_gguf, group_gguf, name_one_of, split_tag

_SMALL_FILES = re.compile(
    r"config\.json|generation_config\.json|(?:pre)?processor_config\.json"
    r"|(?:video_|image_)?(?:pre)?processor_config\.json|tokenizer.*\.(?:json|model)"
    r"|special_tokens_map\.json|added_tokens\.json|vocab\.(?:json|txt)|merges\.txt|spiece\.model"
    r"|tekken\.json|.*\.tiktoken|chat_template\.(?:jinja|json)|params\.json|hf_quant_config\.json"
    r"|quant(?:ize)?_config\.json|(?:additional_chat_templates/)[^/]+\.jinja"
    # How sentence-transformers makes a vector of a text: without them an engine would pool another way.
    r"|modules\.json|sentence_[a-z-]+_config\.json|config_sentence_transformers\.json"
    r"|\d+_[A-Za-z]+/config\.json"
)
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")
_ADAPTER = re.compile(r"adapter_.*\.safetensors")
_MAX_FILES, _MAX_PATH = 20_000, 512
_FOREIGN = {
    ".gguf": "GGUF",
    ".bin": "PyTorch .bin",
    ".pth": "PyTorch .pth",
    ".pt": "PyTorch .pt",
    ".onnx": "ONNX",
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
}


def choose_files(source: str, files: Sequence[ModelFile]) -> tuple[ModelFile, ...]:
    """Choose what to fetch, smallest files first so that a broken model is noticed early.

    Raises:
        ModelUnusable: there is nothing an engine could load, or a name is not safe to write.
    """
    if len(files) > _MAX_FILES:
        raise ModelUnusable(
            f"{source} holds {len(files):,} files, and a model has {_MAX_FILES:,} at most"
        )
    for file in files:
        if not _is_safe(file.path):
            raise ModelUnusable(f"{source} holds a file with the unsafe name {shown(file.path)!r}")
    if split_tag(source)[1]:
        return choose_gguf(source, files)
    names = {file.path for file in files}
    packed = group_gguf(files)
    if packed and not any(name.endswith(".safetensors") for name in names):
        raise ModelUnusable(
            f"{source} holds GGUF files, of which one is fetched by its type",
            hint=f"{name_one_of(source, packed)} Its engine is llama-cpp.",
        )
    weights = _choose_weights(source, names)
    if "config.json" not in names:
        raise ModelUnusable(
            f"{source} holds no config.json, so no engine can tell what it is",
            hint="Choose a repository in the form of the transformers library.",
        )
    chosen = [file for file in files if file.path in weights or _SMALL_FILES.fullmatch(file.path)]
    return tuple(sorted(chosen, key=lambda file: (file.size_bytes, file.path)))


def _is_safe(path: str) -> bool:
    """Whether a path of a stranger's repository can be written below a model's directory, and told."""
    parts = PurePosixPath(path).parts
    is_inside = bool(parts) and ".." not in parts and not path.startswith("/") and "\\" not in path
    return is_inside and parts[0] != PRIVATE_DIR and path.isprintable() and len(path) <= _MAX_PATH


def _choose_weights(source: str, names: set[str]) -> set[str]:
    candidates = {
        name
        for name in names
        if name.endswith(".safetensors") and "/" not in name and not _ADAPTER.fullmatch(name)
    }
    if not candidates:
        raise _nothing_to_load(source, names)
    sets = _group_shards(candidates)
    if "model.safetensors.index.json" in names and "model" in sets:
        return _complete(source, sets["model"]) | {"model.safetensors.index.json"}
    if "model.safetensors" in candidates:
        return {"model.safetensors"}
    for stem in sorted(sets):
        if not stem.startswith("consolidated"):
            index = f"{stem}.safetensors.index.json"
            return _complete(source, sets[stem]) | ({index} & names)
    others = {name for name in candidates if not name.startswith("consolidated")}
    return {name for name in others if not _SHARD.fullmatch(name)} or candidates


def _group_shards(candidates: set[str]) -> dict[str, set[str]]:
    sets: dict[str, set[str]] = {}
    for name in candidates:
        if match := _SHARD.fullmatch(name):
            sets.setdefault(match["stem"], set()).add(name)
    return sets


def _complete(source: str, shards: set[str]) -> set[str]:
    """Return the shards when none is missing."""
    matches = [match for name in shards if (match := _SHARD.fullmatch(name))]
    total = max(int(match["total"]) for match in matches)
    if len(shards) != total:
        raise ModelUnusable(
            f"{source} holds {len(shards)} of {total} parts of its weights",
            hint="The upload is not finished, or failed: ask the authors, or use another revision.",
        )
    return shards


def _nothing_to_load(source: str, names: set[str]) -> ModelUnusable:
    if any(_ADAPTER.fullmatch(name) for name in names):
        return ModelUnusable(
            f"{source} is an adapter (LoRA), not a whole model",
            hint="Use the model that it adapts, or a repository with the two merged.",
        )
    foreign = sorted(
        {label for ending, label in _FOREIGN.items() if any(n.endswith(ending) for n in names)}
    )
    found = f"it has weights as {', '.join(foreign)}" if foreign else "it has no weights at all"
    return ModelUnusable(
        f"{source} holds no safetensors weights; {found}",
        hint="Choose a repository, or a revision, with .safetensors files.",
    )

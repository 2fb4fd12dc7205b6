"""One GGUF file of a Hub repository, by its type: `ORG/NAME:Q4_K_M`, as llama.cpp's own `--hf-repo` has it. Pure.

Such repositories hold the same weights in many types, of which an engine loads one. A large file comes in parts.
Source of the form: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from exo_inference.hub.base import ModelFile, ModelUnusable
from exo_inference.model_description import (
    CONFIG_NAME,
    GGUF_ENDING,
    GGUF_PART,
    gguf_part_path,
    holds_gguf_weights,
)

_TYPE = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|F(?:P)?(?:16|32)|MXFP4\w*))$", re.IGNORECASE
)
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What may stand behind the colon (`exo_inference/hub/__init__.py`)."""
_MOST_SHOWN = 24


def split_tag(name: str) -> tuple[str, str]:
    """Return the repository of a name of the Hub, and the type behind its colon, empty where there is none."""
    repository, _, tag = name.partition(":")
    return repository, tag


def choose_gguf(source: str, files: Sequence[ModelFile]) -> tuple[ModelFile, ...]:
    """Choose the parts of the one file that the type behind the colon means, and config.json where there is one.

    The type may also be the whole name of the file, without `.gguf`.

    Raises:
        ModelUnusable: no file is of that type, several are, or parts are missing; the next step lists what there is.
    """
    repository, tag = split_tag(source)
    found = group_gguf(files)
    if not found:
        raise ModelUnusable(
            f"{repository} holds no GGUF file",
            hint=f"Create the model as {repository}, or choose a repository of GGUF files.",
        )
    wanted = [stem for stem in found if PurePosixPath(stem).name.lower() == tag.lower()]
    wanted = wanted or [stem for stem in found if _type_of(stem).lower() == tag.lower()]
    if len(wanted) != 1:
        many = f"{len(wanted)} GGUF files" if wanted else "no GGUF file"
        shown = {stem: found[stem] for stem in wanted} or found
        raise ModelUnusable(
            f"{repository} holds {many} of the type {tag!r}", hint=name_one_of(repository, shown)
        )
    parts = found[wanted[0]]
    _check_whole(repository, wanted[0], parts)
    config = [file for file in files if file.path == CONFIG_NAME]
    return tuple(sorted([*config, *parts], key=lambda file: (file.size_bytes, file.path)))


def group_gguf(files: Iterable[ModelFile]) -> dict[str, list[ModelFile]]:
    """Return the parts of every GGUF file of a model, by its path without `.gguf`."""
    found: dict[str, list[ModelFile]] = {}
    for file in files:
        if holds_gguf_weights(file.path):
            path = file.path.removesuffix(GGUF_ENDING)
            part = GGUF_PART.fullmatch(path)
            found.setdefault(part["stem"] if part else path, []).append(file)
    return found


def name_one_of(repository: str, found: Mapping[str, Sequence[ModelFile]]) -> str:
    """Return the next step: the names under which these files can be had, the smallest first, with their sizes."""
    sizes = {stem: sum(file.size_bytes for file in parts) for stem, parts in found.items()}
    told = [
        f"{repository}:{name}" + (f" ({sizes[stem] / 1e9:.2f} GB)" if sizes[stem] else "")
        for stem, name in sorted(_names(found).items(), key=lambda each: (sizes[each[0]], each[0]))
    ]
    if not told:
        return "The names of its files do not tell them apart: choose another repository."
    more = f" and {len(told) - _MOST_SHOWN} more" if len(told) > _MOST_SHOWN else ""
    return f"Create the model as one of: {', '.join(told[:_MOST_SHOWN])}{more}."


def _names(stems: Iterable[str]) -> dict[str, str]:
    """Return by file what is to be written behind the colon for it alone; files that no name means alone are left out."""
    files = {stem: (_type_of(stem), PurePosixPath(stem).name) for stem in stems}
    types = Counter(kind.lower() for kind, _ in files.values())
    names = Counter(name.lower() for _, name in files.values())
    found = {}
    for stem, (kind, name) in files.items():
        is_of_type = types[kind.lower()] == 1 and not names[kind.lower()]
        if is_of_type and _TAG.fullmatch(kind):
            found[stem] = kind
        elif names[name.lower()] == 1 and _TAG.fullmatch(name):
            found[stem] = name
    return found


def _type_of(stem: str) -> str:
    """Return the type that a file's name ends with, else that of its folder, else an empty text."""
    path = PurePosixPath(stem)
    found = _TYPE.search(path.name) or _TYPE.search(path.parent.name)
    return "" if found is None else found[1]


def _check_whole(repository: str, stem: str, parts: Sequence[ModelFile]) -> None:
    matches = [GGUF_PART.fullmatch(file.path.removesuffix(GGUF_ENDING)) for file in parts]
    if len(parts) == 1 and matches[0] is None:
        return
    total = max((int(match["total"]) for match in matches if match is not None), default=0)
    wanted = {gguf_part_path(stem, number + 1, total) for number in range(total)}
    if total != len(parts) or wanted != {file.path for file in parts}:
        raise ModelUnusable(
            f"{repository} holds {sum(file.path in wanted for file in parts)} of {total} parts of that GGUF file, "
            f"in {len(parts)} files of its name",
            hint="The upload is not finished, or failed: ask the authors, or use another revision.",
        )

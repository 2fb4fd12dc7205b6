"""One GGUF file of a Hub repository, by its type: `ORG/NAME:Q4_K_M`, as llama.cpp's own `--hf-repo` has it. Pure.

Such repositories hold the same weights in many types, of which an engine loads one. A large file comes in parts.
Source of the form: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from exo_inference.hub.base import ModelFile, ModelUnusable
from exo_inference.model_description import CONFIG_NAME

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})")
_TYPE = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|F(?:P)?(?:16|32)|MXFP4\w*))$", re.IGNORECASE
)
_PROJECTOR = "mmproj"
"""In names of image encoders, which are files of their own."""
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
    wanted = [stem for stem in found if _last(stem) == tag.lower()]
    wanted = wanted or [stem for stem in found if _type_of(stem) == tag.lower()]
    if len(wanted) != 1:
        many = f"{len(wanted)} GGUF files" if wanted else "no GGUF file"
        shown = {stem: found[stem] for stem in wanted} or found
        raise ModelUnusable(
            f"{repository} holds {many} of the type {tag!r}", hint=name_one_of(repository, shown)
        )
    parts = found[wanted[0]]
    _check_whole(repository, parts)
    config = [file for file in files if file.path == CONFIG_NAME]
    return tuple(sorted([*config, *parts], key=lambda file: (file.size_bytes, file.path)))


def group_gguf(files: Iterable[ModelFile]) -> dict[str, list[ModelFile]]:
    """Return the parts of every GGUF file of a model, by its path without `.gguf`."""
    found: dict[str, list[ModelFile]] = {}
    for file in files:
        if file.path.lower().endswith(".gguf") and _PROJECTOR not in file.path.lower():
            path = file.path[: -len(".gguf")]
            part = _PART.fullmatch(path)
            found.setdefault(part["stem"] if part else path, []).append(file)
    return found


def name_one_of(repository: str, found: Mapping[str, Sequence[ModelFile]]) -> str:
    """Return the next step: the names under which these files can be had, with their sizes."""
    types = [_type_of(stem) for stem in found]
    sizes = []
    for stem, parts in sorted(found.items(), key=lambda each: sum(f.size_bytes for f in each[1])):
        of_type = _TYPE.search(stem)
        is_alone = of_type is not None and types.count(_type_of(stem)) == 1
        tag = of_type[1] if of_type is not None and is_alone else PurePosixPath(stem).name
        size = sum(file.size_bytes for file in parts)
        sizes.append(f"{repository}:{tag}" + (f" ({size / 1e9:.2f} GB)" if size else ""))
    more = f" and {len(sizes) - _MOST_SHOWN} more" if len(sizes) > _MOST_SHOWN else ""
    return f"Create the model as one of: {', '.join(sizes[:_MOST_SHOWN])}{more}."


def _last(stem: str) -> str:
    return PurePosixPath(stem).name.lower()


def _type_of(stem: str) -> str:
    found = _TYPE.search(stem)
    return _last(stem) if found is None else found[1].lower()


def _check_whole(repository: str, parts: Sequence[ModelFile]) -> None:
    totals = [int(m["total"]) for file in parts if (m := _PART.fullmatch(file.path[:-5]))]
    if totals and len(parts) != max(totals):
        raise ModelUnusable(
            f"{repository} holds {len(parts)} of {max(totals)} parts of that GGUF file",
            hint="The upload is not finished, or failed: ask the authors, or use another revision.",
        )

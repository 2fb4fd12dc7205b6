"""What the child can be asked for: the only functions that see a foreign file. Plain values in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from exo_inference.foreign_files import description
from exo_inference.foreign_files.architecture_json import encode, printable
from exo_inference.foreign_files.model_directory import check_model_directory

Task = Callable[[Mapping[str, Any], list[bytes]], Any]


def _check_model(arguments: Mapping[str, Any], blobs: list[bytes]) -> Any:
    found = check_model_directory(Path(arguments["directory"]))
    return {"files": found.files, "fingerprint": found.fingerprint}


def _describe_model(arguments: Mapping[str, Any], blobs: list[bytes]) -> Any:
    model = description.describe_model(
        Path(arguments["path"]), arguments["name"], is_strict=arguments["is_strict"]
    )
    return encode(printable(model))


def _describe_remote(arguments: Mapping[str, Any], blobs: list[bytes]) -> Any:
    names: list[str] = arguments["files"]
    files = dict(zip(names, blobs, strict=False))
    model, shards = description.describe_remote(
        files, blobs[len(names) :], arguments["name"], arguments["source"]
    )
    return {"model": encode(printable(model)), "shards": shards}


TASKS: Mapping[str, Task] = {
    "check_model": _check_model,
    "describe_model": _describe_model,
    "describe_remote": _describe_remote,
}

"""Two files of a repository may be equal, and are fetched at once."""

from __future__ import annotations

from pathlib import Path

from exo_inference.hub.huggingface import HuggingFaceSource

from .hub_server import HubServer
from .test_huggingface import fetch, names


async def test_files_of_one_content_are_fetched_side_by_side(
    source: HuggingFaceSource, hub: HubServer, directory: Path
) -> None:
    files = hub.repos["acme/small"].files
    files |= {"added_tokens.json": b"{}", "special_tokens_map.json": b"{}", "vocab.json": b"{}"}
    await fetch(source, directory)
    assert {name for name in names(directory) if (directory / name).read_bytes() == b"{}"} >= {
        "added_tokens.json", "special_tokens_map.json", "vocab.json",
    }  # fmt: skip

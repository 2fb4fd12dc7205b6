"""What a model is, from its files and from the Hub: configuration and headers alone, within limits."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import httpx2
import pytest

from exo_inference.foreign_files import child, client
from exo_inference.foreign_files.pool import Pool
from exo_inference.hub import bounded_requests, remote_architecture
from exo_inference.hub.architecture import fetch_architecture, read_directory
from exo_inference.hub.base import ModelGated, ModelNotFound, ModelUnusable, SourceUnreachable
from exo_inference.model_description import MAX_CONFIG_BYTES
from exo_inference.planner import load_models

from .hub_server import COMMIT, GOOD_TOKEN, HubServer, Repo

QWEN = "Qwen/Qwen3-8B"
CONFIG = load_models()[QWEN]["config"]
NUM_BYTES = 16_000_000_000


def header(num_bytes: int, *, padding: int = 0) -> bytes:
    """Return the start of a file whose one tensor would have so many bytes; the tensor is not there."""
    entry = {"dtype": "BF16", "shape": [num_bytes // 2], "data_offsets": [0, num_bytes]}
    raw = json.dumps({"model.w": entry}).encode() + b" " * padding
    return struct.pack("<Q", len(raw)) + raw


def write_model(directory: Path, **files: bytes) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    for name, content in files.items():
        (directory / name.replace("__", ".").replace("_S_", "-")).write_bytes(content)
    return directory


def test_headers_of_the_files_give_the_exact_size(directory: Path) -> None:
    write_model(
        directory,
        model_S_00001__safetensors=header(NUM_BYTES // 2),
        model_S_00002__safetensors=header(NUM_BYTES // 2),
        consolidated__safetensors=header(NUM_BYTES),
    )
    found = read_directory(directory, "mine")
    assert (found.name, found.checkpoint_bytes) == ("mine", NUM_BYTES)


def test_without_readable_headers_the_configuration_has_to_do(directory: Path) -> None:
    write_model(directory, model__safetensors=b"\xff" * 100)
    found = read_directory(directory, "mine")
    assert found.checkpoint_bytes is None
    assert found.cannot_size is None


def test_an_unknown_architecture_is_no_error_but_says_so(directory: Path) -> None:
    write_model(directory)
    (directory / "config.json").write_text('{"model_type": "from-the-future"}')
    assert read_directory(directory, "mine").cannot_size


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"\xff", b"{" * 100_000, b" " * (MAX_CONFIG_BYTES + 1)],
    ids=["cut", "a list", "not UTF-8", "deep", "too large"],
)
def test_a_configuration_that_cannot_be_read_is_named(directory: Path, content: bytes) -> None:
    write_model(directory)
    (directory / "config.json").write_bytes(content)
    with pytest.raises(ModelUnusable, match=r"config\.json"):
        read_directory(directory, "mine")


def test_a_directory_without_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match="cannot read"):
        read_directory(tmp_path, "mine")


@pytest.fixture
def repo(hub: HubServer) -> Repo:
    made = Repo({"config.json": json.dumps(CONFIG).encode(), "model.safetensors": b""})
    made.files["model.safetensors"] = header(NUM_BYTES) + b"x" * 3_000_000
    hub.repos["acme/qwen"] = made
    return made


async def test_the_hub_is_asked_for_headers_and_not_for_weights(hub: HubServer, repo: Repo) -> None:
    found = await fetch_architecture("acme/qwen", endpoint=hub.url)
    assert (found.name, found.checkpoint_bytes) == ("acme/qwen", NUM_BYTES)
    assert hub.sent["model.safetensors"] <= 512 * 1024
    assert {authorization for _, _, authorization in hub.requests} == {None}


async def test_a_header_longer_than_the_first_bytes_is_asked_for_again(
    hub: HubServer, repo: Repo
) -> None:
    repo.files["model.safetensors"] = header(NUM_BYTES, padding=700_000) + b"x" * 3_000_000
    found = await fetch_architecture("acme/qwen", endpoint=hub.url)
    assert found.checkpoint_bytes == NUM_BYTES


async def test_a_server_without_ranges_is_hung_up_on(hub: HubServer, repo: Repo) -> None:
    hub.ignores_ranges = True
    found = await fetch_architecture("acme/qwen", endpoint=hub.url)
    assert found.checkpoint_bytes == NUM_BYTES


@pytest.mark.parametrize("raw", [b"[]", b"[" * 100_000, b'{"a": 1}'], ids=["list", "deep", "none"])
async def test_a_header_of_another_form_leaves_the_configuration(
    hub: HubServer, repo: Repo, directory: Path, raw: bytes
) -> None:
    damaged = struct.pack("<Q", len(raw)) + raw
    repo.files["model.safetensors"] = damaged
    write_model(directory, model__safetensors=damaged)
    for found in (
        await fetch_architecture("acme/qwen", endpoint=hub.url),
        read_directory(directory, "mine"),
    ):
        assert found.checkpoint_bytes is None
        assert found.cannot_size is None


async def test_all_files_of_the_index_count(hub: HubServer, repo: Repo) -> None:
    del repo.files["model.safetensors"]
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for shard in shards:
        repo.files[shard] = header(NUM_BYTES // 2) + b"x" * 10_000
    index = {"metadata": {"total_size": 1}, "weight_map": dict(zip("ab", shards, strict=True))}
    repo.files["model.safetensors.index.json"] = json.dumps(index).encode()
    found = await fetch_architecture("acme/qwen", endpoint=hub.url)
    assert found.checkpoint_bytes == NUM_BYTES


async def test_many_files_do_not_cost_a_connection_each(
    hub: HubServer, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_architecture, "_FIRST_BYTES", 5_000)
    monkeypatch.setattr(
        bounded_requests, "_LIMITS", httpx2.Limits()
    )  # however slow this machine is
    del repo.files["model.safetensors"]
    shards = [f"model-{n:05}-of-00024.safetensors" for n in range(1, 25)]
    for shard in shards:
        repo.files[shard] = header(NUM_BYTES // 24) + b"x" * 10_000
    index = {"metadata": {"total_size": 1}, "weight_map": {shard: shard for shard in shards}}
    repo.files["model.safetensors.index.json"] = json.dumps(index).encode()
    found = await fetch_architecture("acme/qwen", endpoint=hub.url)
    assert found.checkpoint_bytes == 24 * (NUM_BYTES // 24 // 2 * 2)
    assert len(hub.requests) > 2 * len(shards)
    # One for the small files, and of each thread one to the Hub and one to its CDN.
    assert len(hub.connections) <= 1 + 2 * remote_architecture._NUM_PARALLEL


async def test_the_total_of_the_index_does_where_headers_cannot_be_had(
    hub: HubServer, repo: Repo
) -> None:
    index = {"metadata": {"total_size": 16_381_470_720}, "weight_map": {"a": "gone.safetensors"}}
    repo.files["model.safetensors.index.json"] = json.dumps(index).encode()
    found = await fetch_architecture("acme/qwen", endpoint=hub.url)
    assert found.checkpoint_bytes == 16_381_470_720


async def test_a_token_opens_a_gated_model_and_goes_to_the_hub_alone(
    hub: HubServer, repo: Repo
) -> None:
    repo.gated = True
    with pytest.raises(ModelGated):
        await fetch_architecture("acme/qwen", endpoint=hub.url)
    found = await fetch_architecture(
        "acme/qwen", endpoint=hub.url, token=GOOD_TOKEN, revision=COMMIT
    )
    assert found.cannot_size is None
    sent = [authorization for _, path, authorization in hub.requests if path.startswith("/cdn/")]
    assert f"Bearer {GOOD_TOKEN}" not in sent


async def test_a_model_that_is_not_there_is_told_from_a_hub_that_is_not(hub: HubServer) -> None:
    with pytest.raises(ModelNotFound):
        await fetch_architecture("acme/none", endpoint=hub.url)
    with pytest.raises(SourceUnreachable, match="cannot reach the Hub"):
        await fetch_architecture("acme/none", endpoint="http://127.0.0.1:9")


async def test_a_damaged_configuration_is_refused(hub: HubServer, repo: Repo) -> None:
    repo.files["config.json"] = b"<html>"
    with pytest.raises(ModelUnusable, match=r"acme/qwen: config\.json is not JSON"):
        await fetch_architecture("acme/qwen", endpoint=hub.url)


async def test_a_configuration_beyond_all_measure_is_not_read(
    hub: HubServer, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_architecture, "MAX_CONFIG_BYTES", 100)
    with pytest.raises(ModelUnusable, match="larger than 100 bytes"):
        await fetch_architecture("acme/qwen", endpoint=hub.url)


async def test_readers_that_do_not_answer_hold_up_no_other_work(
    hub: HubServer, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "silent.py").write_text("import sys\nsys.stdin.buffer.read()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(child, "_MODULE", "silent")
    pool = Pool()
    monkeypatch.setattr(client, "pool", pool)
    asked = [
        fetch_architecture("acme/qwen", endpoint=hub.url, timeout_seconds=2) for _ in range(40)
    ]
    for failed in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(failed, SourceUnreachable)
    assert pool.num_children > 0
    async with asyncio.timeout(15):  # a silent child is ended after 30 s
        assert await asyncio.to_thread(len, "abc") == 3


async def test_a_silent_hub_is_given_up() -> None:
    held: list[asyncio.StreamWriter] = []

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = "http://{}:{}".format(*server.sockets[0].getsockname()[:2])
    with pytest.raises(SourceUnreachable):
        await fetch_architecture("acme/qwen", endpoint=address, timeout_seconds=0.3)
    for writer in held:
        writer.close()
    server.close()

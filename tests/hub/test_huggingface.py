"""The Hugging Face source, with the real client against a local Hub."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from exo_inference.errors import HubError
from exo_inference.hub import download, huggingface
from exo_inference.hub.base import (
    FetchCancelled,
    ModelGated,
    ModelNotFound,
    ModelUnusable,
    NoSpace,
    SourceUnreachable,
    TokenRejected,
)
from exo_inference.hub.huggingface import HuggingFaceSource

from .hub_server import COMMIT, GOOD_TOKEN, HubServer, Repo, safetensors

OTHER_TOKEN = "hf_goodbutanotheraccount"
BAD_TOKEN = "hf_badbadbadbadbad"


async def fetch(
    source: HuggingFaceSource,
    directory: Path,
    name: str = "acme/small",
    token: str | None = None,
    seen: list[int] | None = None,
) -> Path:
    model = await source.resolve(name, revision=None, token=token)
    report = (seen if seen is not None else []).append
    return await source.fetch(model, directory, token=token, progress=report)


def names(directory: Path) -> set[str]:
    return {p.relative_to(directory).as_posix() for p in directory.iterdir() if p.name != ".exo"}


async def test_resolve_pins_the_commit_and_chooses_only_what_an_engine_loads(
    source: HuggingFaceSource, hub: HubServer
) -> None:
    model = await source.resolve("acme/small", revision=None, token=None)
    assert model.revision == COMMIT
    assert {f.path for f in model.files} == {"config.json", "tokenizer.json", "model.safetensors"}
    weights = next(file for file in model.files if file.path == "model.safetensors")
    content = hub.repos["acme/small"].files["model.safetensors"]
    assert weights.size_bytes == len(content)
    assert weights.sha256 == hub.repos["acme/small"].etag("model.safetensors")
    assert hub.sent["model.safetensors"] == 0


async def test_fetch_brings_the_files_and_reports_bytes_up_to_the_total(
    source: HuggingFaceSource, hub: HubServer, directory: Path
) -> None:
    seen: list[int] = []
    model = await source.resolve("acme/small", revision="main", token=None)
    path = await source.fetch(model, directory, token=None, progress=seen.append)
    assert path == directory
    assert names(directory) == {"config.json", "tokenizer.json", "model.safetensors"}
    expected = hub.repos["acme/small"].files["model.safetensors"]
    assert (directory / "model.safetensors").read_bytes() == expected
    assert seen[0] == 0
    assert seen[-1] == model.size_bytes
    assert seen == sorted(seen)


async def test_second_fetch_asks_for_nothing(
    source: HuggingFaceSource, hub: HubServer, directory: Path
) -> None:
    model = await source.resolve("acme/small", revision=None, token=None)
    await source.fetch(model, directory, token=None, progress=lambda _: None)
    num_requests = len(hub.requests)
    await source.fetch(model, directory, token=None, progress=lambda _: None)
    assert len(hub.requests) == num_requests


async def test_dropped_connections_cost_no_byte_twice(
    source: HuggingFaceSource, hub: HubServer, directory: Path
) -> None:
    repo = hub.repos["acme/small"]
    size = len(repo.files["model.safetensors"])
    repo.drops["model.safetensors"] = [1_000_000, 500_000, 700_000]
    await fetch(source, directory)
    assert (directory / "model.safetensors").read_bytes() == repo.files["model.safetensors"]
    # What was sent but still on the way when the connection closed is sent again.
    assert hub.sent["model.safetensors"] <= size + 3 * 262_144
    assert sum("/cdn/" in path for _, path, _ in hub.requests if "safetensors" in path) == 4


async def test_new_process_resumes_where_the_last_one_stopped(
    source: HuggingFaceSource, hub: HubServer, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(hub.repos["acme/small"].files["model.safetensors"])
    half = size // 2

    def stop_half_way(present: int) -> None:
        if present > half:
            raise FetchCancelled("enough")

    model = await source.resolve("acme/small", revision=None, token=None)
    monkeypatch.setattr(download, "_REPORT_SECONDS", 0.0)
    with pytest.raises(FetchCancelled):
        await source.fetch(model, directory, token=None, progress=stop_half_way)
    kept = max(p.stat().st_size for p in (directory / ".exo" / "partial").glob("*.part"))
    assert half / 2 < kept < size
    hub.sent.clear()
    seen: list[int] = []
    other = HuggingFaceSource(endpoint=hub.url)
    await other.fetch(model, directory, token=None, progress=seen.append)
    assert hub.sent["model.safetensors"] == size - kept
    assert seen[0] >= kept


async def test_server_that_ignores_ranges_sends_the_whole_file_again(
    source: HuggingFaceSource, hub: HubServer, directory: Path
) -> None:
    repo = hub.repos["acme/small"]
    hub.ignores_ranges = True
    repo.drops["model.safetensors"] = [1_000_000]
    await fetch(source, directory)
    assert (directory / "model.safetensors").read_bytes() == repo.files["model.safetensors"]


@pytest.mark.parametrize("drops", [[300_000] + [0] * 6, [1] * 1000], ids=["silent", "byte by byte"])
async def test_line_that_stays_broken_is_reported_and_what_came_is_kept(
    source: HuggingFaceSource, hub: HubServer, directory: Path, drops: list[int]
) -> None:
    hub.repos["acme/small"].drops["model.safetensors"] = drops
    with pytest.raises(SourceUnreachable, match="cannot reach the Hub") as caught:
        await fetch(source, directory)
    assert "HF_ENDPOINT" in (caught.value.hint or "")
    (partial,) = (directory / ".exo" / "partial").glob("*.part")
    assert 0 < partial.stat().st_size <= 300_000


async def test_damaged_file_is_fetched_once_more(
    source: HuggingFaceSource, hub: HubServer, directory: Path
) -> None:
    repo = hub.repos["acme/small"]
    repo.damages["model.safetensors"] = 1
    repo.damages["config.json"] = 1
    seen: list[int] = []
    await fetch(source, directory, seen=seen)
    assert (directory / "model.safetensors").read_bytes() == repo.files["model.safetensors"]
    assert (directory / "config.json").read_bytes() == repo.files["config.json"]
    assert seen[-1] == sum(len(repo.files[name]) for name in names(directory))


@pytest.mark.parametrize("path", ["model.safetensors", "config.json"])
async def test_file_that_comes_damaged_twice_is_refused(
    source: HuggingFaceSource, hub: HubServer, directory: Path, path: str
) -> None:
    hub.repos["acme/small"].damages[path] = 2
    with pytest.raises(ModelUnusable, match=f"{path} was fetched twice and came damaged"):
        await fetch(source, directory)
    assert not (directory / path).exists()


async def test_repository_whose_weights_are_broken_at_the_source_is_refused(
    source: HuggingFaceSource, hub: HubServer, directory: Path
) -> None:
    files = hub.repos["acme/small"].files
    files["model.safetensors"] = files["model.safetensors"][:-1000]
    with pytest.raises(ModelUnusable, match=r"model\.safetensors is damaged: its tensors need \d+"):
        await fetch(source, directory)


async def test_file_changed_on_disk_is_fetched_again(
    source: HuggingFaceSource, hub: HubServer, directory: Path
) -> None:
    await fetch(source, directory)
    (directory / "config.json").write_bytes(b"{}")
    await fetch(source, directory)
    assert (directory / "config.json").read_bytes() == b'{"model_type": "llama"}'


@pytest.mark.parametrize(
    ("name", "token", "kind", "words"),
    [
        pytest.param("acme/nope", None, ModelNotFound, "no public model", id="missing"),
        pytest.param("acme/nope", GOOD_TOKEN, ModelNotFound, "may see", id="missing-with-token"),
        pytest.param("acme/private", None, ModelNotFound, "no public model", id="private"),
        pytest.param("acme/private", OTHER_TOKEN, ModelNotFound, "may see", id="not-a-member"),
        pytest.param("acme/gated", None, ModelGated, "no token was given", id="gated"),
        pytest.param("acme/gated", OTHER_TOKEN, ModelGated, "has no access", id="not-accepted"),
        pytest.param("acme/small", BAD_TOKEN, TokenRejected, "does not accept", id="bad-token"),
        pytest.param("acme/gated", BAD_TOKEN, TokenRejected, "does not accept", id="bad-and-gated"),
        pytest.param("acme/ill", None, SourceUnreachable, "status 502", id="server-error"),
        pytest.param("acme/busy", None, SourceUnreachable, "429", id="rate-limit"),
    ],
)
async def test_refusals_are_told_apart_each_with_a_next_step(
    source: HuggingFaceSource,
    hub: HubServer,
    name: str,
    token: str | None,
    kind: type[HubError],
    words: str,
) -> None:
    files = hub.repos["acme/small"].files
    hub.repos |= {
        "acme/private": Repo(files, private=True),
        "acme/gated": Repo(files, gated=True),
        "acme/ill": Repo(files, status=502),
        "acme/busy": Repo(files, status=429),
    }
    with pytest.raises(kind, match=words) as caught:
        await source.resolve(name, revision=None, token=token)
    assert type(caught.value) is kind
    assert caught.value.hint
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert token is None or token not in shown


@pytest.mark.parametrize("name", ["acme/private", "acme/gated"])
async def test_token_of_a_member_opens_private_and_gated_models(
    source: HuggingFaceSource, hub: HubServer, directory: Path, name: str
) -> None:
    files = hub.repos["acme/small"].files
    hub.repos[name] = Repo(files, private="private" in name, gated="gated" in name)
    await fetch(source, directory, name, token=GOOD_TOKEN)
    assert "model.safetensors" in names(directory)
    at_cdn = [sent for _, path, sent in hub.requests if path.startswith("/cdn/")]
    assert at_cdn
    assert set(at_cdn) == {None}, "the token must not leave the Hub"


async def test_missing_revision_is_named(source: HuggingFaceSource) -> None:
    with pytest.raises(ModelNotFound, match="has no revision 'v9'") as caught:
        await source.resolve("acme/small", revision="v9", token=None)
    assert "branch" in (caught.value.hint or "")


async def test_unreachable_hub_is_told(tmp_path: Path) -> None:
    source = HuggingFaceSource(endpoint="http://127.0.0.1:9", timeout_seconds=2)
    with pytest.raises(SourceUnreachable, match=r"cannot reach the Hub at http://127\.0\.0\.1:9"):
        await source.resolve("acme/small", revision=None, token=None)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"model.gguf": b"x"}, "of which one is fetched by its type"),
        ({"pytorch_model.bin": b"x"}, r"PyTorch \.bin"),
        ({"adapter_model.safetensors": b"x"}, "adapter"),
        ({"README.md": b"x"}, "no weights at all"),
        ({"model-00001-of-00002.safetensors": b"x"}, "1 of 2 parts"),
    ],
    ids=["gguf", "bin", "adapter", "empty", "incomplete"],
)
async def test_repository_without_usable_weights_is_refused_before_any_download(
    source: HuggingFaceSource, hub: HubServer, files: dict[str, bytes], words: str
) -> None:
    hub.repos["acme/odd"] = Repo({"config.json": b"{}", **files})
    with pytest.raises(ModelUnusable, match=words):
        await source.resolve("acme/odd", revision=None, token=None)


async def test_sizes_and_hashes_are_asked_one_by_one_where_the_list_has_none(
    source: HuggingFaceSource, hub: HubServer, directory: Path
) -> None:
    hub.repos["acme/small"].lists_sizes = False
    model = await source.resolve("acme/small", revision=None, token=None)
    sizes = {file.path: file.size_bytes for file in model.files}
    assert sizes["model.safetensors"] == len(hub.repos["acme/small"].files["model.safetensors"])
    assert all(file.sha256 or file.git_sha1 for file in model.files)


async def test_sizes_are_not_asked_of_as_many_files_as_a_repository_likes(
    source: HuggingFaceSource, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["acme/small"].lists_sizes = False
    monkeypatch.setattr(huggingface, "_MAX_UNSIZED", 2)
    with pytest.raises(ModelUnusable, match="tells no size of 3 files of acme/small; at most 2"):
        await source.resolve("acme/small", revision=None, token=None)
    assert len(hub.requests) == 1


@pytest.mark.parametrize("name", ["hash_file", "_truncate"])
async def test_a_disk_that_times_out_is_not_taken_for_the_hub(
    source: HuggingFaceSource,
    hub: HubServer,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    repo, num_calls = hub.repos["acme/small"], 0

    def time_out(*_: object) -> None:
        nonlocal num_calls
        num_calls += 1
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    repo.drops["model.safetensors"] = [1_000_000]
    hub.ignores_ranges = True  # so that what came is truncated
    monkeypatch.setattr(download, name, time_out)
    with pytest.raises(HubError, match=r"cannot write to .*: Connection timed out") as raised:
        await fetch(source, directory)
    assert not isinstance(raised.value, SourceUnreachable)
    assert name == "hash_file" or num_calls == 1  # and it is not tried again


async def test_unsafe_file_name_is_refused(source: HuggingFaceSource, hub: HubServer) -> None:
    hub.repos["acme/evil"] = Repo(
        {"config.json": b"{}", "../../x.safetensors": b"", "model.safetensors": safetensors(8)}
    )
    with pytest.raises(ModelUnusable, match="unsafe name"):
        await source.resolve("acme/evil", revision=None, token=None)


async def test_token_stored_for_other_programs_is_not_used_and_no_cache_is_written(
    source: HuggingFaceSource,
    hub: HubServer,
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = tmp_path / "hf-home"
    home.mkdir()
    (home / "token").write_text(BAD_TOKEN)
    monkeypatch.setenv("HF_TOKEN", BAD_TOKEN)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(home))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(home / "hub"))
    await fetch(source, directory)
    assert {sent for _, _, sent in hub.requests} == {None}
    assert {path.name for path in home.iterdir()} == {"token"}
    assert not any("torch" in agent for agent in hub.user_agents)
    assert all(agent.startswith("exo-inference") for agent in hub.user_agents)


async def test_token_is_in_no_log_line(
    source: HuggingFaceSource, hub: HubServer, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.repos["acme/small"].drops["model.safetensors"] = [100_000]
    await fetch(source, directory, token=GOOD_TOKEN)
    assert GOOD_TOKEN not in caplog.text
    assert GOOD_TOKEN not in repr(source)
    for path in directory.rglob("*"):
        assert not path.is_file() or GOOD_TOKEN.encode() not in path.read_bytes()


async def test_cancelled_fetch_stops_its_threads_and_a_second_one_goes_on(
    source: HuggingFaceSource, hub: HubServer, directory: Path
) -> None:
    hub.repos["acme/small"].drops["model.safetensors"] = [500_000, 0, 0]
    slow = HuggingFaceSource(endpoint=hub.url, retry_seconds=30)
    task = asyncio.create_task(fetch(slow, directory), name="fetch")
    while hub.sent["model.safetensors"] < 500_000:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    hub.repos["acme/small"].drops.clear()
    await asyncio.wait_for(fetch(source, directory), 10)
    assert (directory / "model.safetensors").exists()


async def test_files_of_an_earlier_revision_are_removed(
    source: HuggingFaceSource, hub: HubServer, directory: Path
) -> None:
    await fetch(source, directory)
    repo = hub.repos["acme/small"]
    weights = repo.files.pop("model.safetensors")
    repo.files["model-00001-of-00001.safetensors"] = weights
    await fetch(source, directory)
    assert names(directory) == {
        "config.json",
        "tokenizer.json",
        "model-00001-of-00001.safetensors",
    }


async def test_too_small_a_disk_is_noticed_before_the_download(
    source: HuggingFaceSource,
    hub: HubServer,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage)
    with pytest.raises(NoSpace, match=r"disk full: \d+ bytes must be free .* found 1000000"):
        await fetch(source, directory)
    assert hub.sent["model.safetensors"] == 0


@pytest.fixture
def full_disk(directory: Path) -> Iterator[Path]:
    """A file system of one megabyte, or a skip where the kernel lets nobody mount one."""
    directory.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system needs root")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


async def test_full_disk_keeps_what_came_and_goes_on_when_there_is_room(
    source: HuggingFaceSource,
    hub: HubServer,
    full_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("exo_inference.hub.huggingface._check_space", lambda *_: None)
    with pytest.raises(NoSpace, match="disk full") as caught:
        await fetch(source, full_disk)
    assert "from where it stopped" in (caught.value.hint or "")
    kept = max(path.stat().st_size for path in full_disk.rglob("*.part"))  # others may have one
    assert kept > 500_000
    hub.sent.clear()
    subprocess.run(["mount", "-o", "remount,size=16m", str(full_disk)], check=True)
    await fetch(source, full_disk)
    size = len(hub.repos["acme/small"].files["model.safetensors"])
    assert hub.sent["model.safetensors"] == size - kept


async def test_silent_hub_leaves_the_threads_of_the_loop_to_others(
    source: HuggingFaceSource, hub: HubServer
) -> None:
    silent = hub.repos["acme/small"].silent = asyncio.Event()
    waiting = [
        asyncio.create_task(source.resolve("acme/small", revision=None, token=None), name=f"r{n}")
        for n in range(40)
    ]
    await asyncio.sleep(0.1)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 2) == "free"
    silent.set()
    assert {model.revision for model in await asyncio.gather(*waiting)} == {COMMIT}


async def test_write_errors_are_told_apart(tmp_path: Path) -> None:
    full = download.map_write_error(OSError(errno.EDQUOT, "Quota exceeded"), tmp_path / "x")
    other = download.map_write_error(OSError(errno.EROFS, "Read-only file system"), tmp_path / "x")
    assert isinstance(full, NoSpace)
    assert not isinstance(other, NoSpace)
    assert "Read-only file system" in str(other)

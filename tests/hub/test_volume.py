"""The download Job's program: files on the volume, lines of progress, a report, exit codes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from exo_inference.hub import __main__ as program
from exo_inference.hub.builtin import builtin_directory

from .hub_server import COMMIT, GOOD_TOKEN, HubServer


async def run(*arguments: str) -> tuple[int, list[dict[str, object]], str]:
    """Run the program as the Job does; return exit code, lines of stdout, and stderr."""
    command = [sys.executable, "-m", "exo_inference.hub", *arguments]
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, [json.loads(line) for line in out.splitlines()], err.decode()


def checksum(files: dict[str, bytes]) -> str:
    """What `sha256sum` of all files, sorted by path, hashes to."""
    lines = (f"{hashlib.sha256(files[path]).hexdigest()}  {path}\n" for path in sorted(files))
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


@pytest.fixture
def endpoint(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    return hub


async def test_files_of_the_hub_end_on_the_volume(endpoint: HubServer, directory: Path) -> None:
    report = directory.parent.parent / "report"
    code, lines, err = await run(
        f"--directory={directory}", f"--report={report}", "--", "acme/small"
    )
    assert code == 0, err
    files = {
        name: content
        for name, content in endpoint.repos["acme/small"].files.items()
        if (directory / name).exists()
    }
    assert {"config.json", "model.safetensors"} <= files.keys()
    assert all((directory / name).read_bytes() == content for name, content in files.items())
    assert lines[0] == {
        "state": "resolved",
        "revision": COMMIT,
        "size_bytes": sum(map(len, files.values())),
    }
    assert lines[-1]["state"] == "downloaded"
    assert lines[-1]["checksum"] == checksum(files)
    assert json.loads(report.read_text()) == lines[-1]


async def test_second_run_fetches_nothing_again(endpoint: HubServer, directory: Path) -> None:
    first = await run(f"--directory={directory}", "--", "acme/small")
    sent = endpoint.sent["model.safetensors"]
    wanted = f"--checksum={first[1][-1]['checksum']}"
    code, lines, _ = await run(f"--directory={directory}", wanted, "--", "acme/small")
    assert (code, lines[-1]) == (0, first[1][-1])
    assert endpoint.sent["model.safetensors"] == sent


async def test_another_checksum_is_final(endpoint: HubServer, directory: Path) -> None:
    wanted = "sha256:" + "0" * 64
    report = directory.parent.parent / "report"
    code, _, err = await run(
        f"--directory={directory}", f"--checksum={wanted}", f"--report={report}", "--", "acme/small"
    )
    assert code == os.EX_CONFIG
    assert f"expected {wanted}" in err
    assert report.read_text().startswith("exo-download: error: the files of acme/small")


async def test_gated_model_needs_the_token_of_the_file_and_never_shows_it(
    endpoint: HubServer, directory: Path, tmp_path: Path
) -> None:
    endpoint.repos["acme/small"].gated = True
    code, _, err = await run(f"--directory={directory}", "--", "acme/small")
    assert code == os.EX_CONFIG
    assert "acme/small" in err
    token = tmp_path / "token"
    token.write_text(f"{GOOD_TOKEN}\n")
    code, lines, err = await run(
        f"--directory={directory}", f"--token-file={token}", "--", "acme/small"
    )
    assert code == 0, err
    assert GOOD_TOKEN not in err + json.dumps(lines)


async def test_unreachable_hub_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, lines, err = await run(f"--directory={directory}", "--", "acme/small")
    assert (code, lines) == (os.EX_TEMPFAIL, [])
    assert "127.0.0.1:9" in err


async def test_progress_is_told_and_a_stop_keeps_what_came(
    endpoint: HubServer, directory: Path
) -> None:
    endpoint.repos["acme/small"].drops["model.safetensors"] = [700_000] * 50
    command = [sys.executable, "-m", "exo_inference.hub", f"--directory={directory}"]
    process = await asyncio.create_subprocess_exec(
        *command, "--progress-seconds=0.05", "--", "acme/small", stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    async for line in process.stdout:
        found = json.loads(line)
        if found.get("downloaded_bytes", 0) > 600_000:
            break
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 20) == os.EX_TEMPFAIL
    assert found["state"] == "downloading"
    assert sum(p.stat().st_size for p in (directory / ".exo" / "partial").iterdir()) > 600_000


async def test_builtin_model_is_copied(directory: Path) -> None:
    directory.mkdir(parents=True)
    code, lines, err = await run(f"--directory={directory}", "--", "exo/tiny-chat")
    assert code == 0, err
    origin = builtin_directory("exo/tiny-chat")
    for name in ("config.json", "model.safetensors"):
        assert (directory / name).read_bytes() == (origin / name).read_bytes()
    revision = f"--revision={lines[0]['revision']}"
    assert (await run(f"--directory={directory}", revision, "--", "exo/tiny-chat"))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--", "file:///models/a"), "a directory of one machine"),
        (("--", "no name"), "is not the name of a model"),
        (("--", "exo/unknown"), "there is no built-in model"),
        (("--revision=0123", "--", "exo/tiny-chat"), "and 0123 is wanted"),
        (("--checksum=md5:1", "--", "exo/tiny-chat"), "expected sha256: and 64 hex digits"),
        (("--token-file=/nowhere", "--", "acme/small"), "cannot read the Hub's token"),
        (("--token-file=/dev/null", "--", "acme/small"), "found 0 words"),
    ],
)
def test_what_cannot_work_is_final(
    arguments: tuple[str, ...],
    message: str,
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "set_up_logging", lambda: None)  # it would outlive the test
    assert program.main([f"--directory={directory}", *arguments]) == os.EX_CONFIG
    assert message in capsys.readouterr().err


def test_directory_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "set_up_logging", lambda: None)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert program.main([f"--directory={blocked}/model", "--", "exo/tiny-chat"]) == os.EX_CONFIG
    assert f"cannot write to {blocked}/model" in capsys.readouterr().err

"""A start imports little, begins with the core, and takes memory for what is used."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from exo_engine.server import main as entry_point
from exo_engine.server.core_start import start_core

IMPORT = """
import sys
from exo_engine.server import torch_import

def let_go_and_fail():
    let_go()
    outcomes.append("failed")
    raise OSError("no /proc")

let_go, outcomes = torch_import._let_go_of_gpu_code, []
torch_import._let_go_of_gpu_code = let_go_and_fail
torch_import.import_torch()
import torch
resident, is_counted = 0, False
for line in open("/proc/self/smaps"):
    words = line.split()
    if not words[0].endswith(":"):
        is_counted = words[1] == "r-xp" and any(n in line for n in ("/nvidia/", "torch_cuda"))
    elif words[0] == "Rss:" and is_counted:
        resident += int(words[1])
print(resident, float(torch.ones(3, 3).matmul(torch.ones(3)).sum()))
assert not hasattr(torch, "_meta_registrations") and "cuda.bindings" not in sys.modules
before = len(torch._C._dispatch_get_registrations_for_dispatch_key("Meta"))
import torch._meta_registrations
after = len(torch._C._dispatch_get_registrations_for_dispatch_key("Meta"))
print(after - before)
print(*outcomes)
"""


@pytest.fixture(scope="module")
def imported() -> list[str]:
    """What a process says that has imported PyTorch as a core does: this takes more than a second."""
    return subprocess.run(
        [sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True
    ).stdout.splitlines()


@pytest.mark.slow
def test_code_that_only_a_gpu_needs_is_not_kept_in_memory(imported: list[str]) -> None:
    resident_kib, total = imported[0].split()
    assert int(resident_kib) < 20_000
    assert float(total) == 9.0


@pytest.mark.slow
def test_what_is_left_out_of_torch_comes_with_whoever_imports_it(imported: list[str]) -> None:
    assert int(imported[1]) > 100


@pytest.mark.slow
def test_torch_is_imported_although_letting_go_fails(imported: list[str]) -> None:
    assert imported[2] == "failed"


def test_the_core_takes_memory_for_weights_used_cache_and_its_programs(
    start_engine,
) -> None:
    flags = ["--max-num-seqs", "256", "--kv-cache-memory-bytes", str(2**28)]
    measured = start_engine(*flags).wait_ready().http.get("/measurements").json()
    cache = measured["kv_bytes_per_token"] * measured["kv_capacity_tokens"]
    assert cache >= 2**26, "what is not touched is large enough to be missed"
    # Of PyTorch's build for CUDA, whose data are 150 MiB of it; code for a GPU is let go before it adds up.
    assert measured["peak_rss_bytes"] < measured["weights_bytes"] + 480 * 10**6


def test_a_core_that_nobody_gives_a_configuration_ends_with_its_parents_socket() -> None:
    core = start_core("error")
    core.connection.close()
    assert core.process.wait(60) == 0


@pytest.fixture
def _own_logging():
    """An entry point sends all log lines to what is stderr while it runs; undo that for other tests."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.usefixtures("_own_logging")
def test_a_server_that_cannot_listen_leaves_no_core_behind(
    model_dir: Path, monkeypatch, tmp_path: Path, capsys
) -> None:
    cores = []

    def watched(level: str):
        cores.append(start_core(level))
        return cores[0]

    monkeypatch.setattr(entry_point, "start_core", watched)
    flags = ["--uds", str(tmp_path / "missing" / "socket")]
    assert entry_point.main(["serve", str(model_dir), *flags]) != 0
    assert capsys.readouterr().err.startswith("exo-engine: error:")
    assert cores[0].process.returncode is not None


def test_completions_need_neither_jinja_nor_prometheus(
    start_engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with a GPU may have PyTorch and a server's packages, and not these two."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('jinja2', 'prometheus_client'):\n    sys.modules[name] = None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    http = start_engine().wait_ready().http
    answer = http.post(
        "/v1/completions", json={"model": "second-name", "prompt": "a", "max_tokens": 3}
    )
    assert answer.status_code == 200, answer.text
    messages = [{"role": "user", "content": "a"}]
    refused = http.post("/v1/chat/completions", json={"model": "second-name", "messages": messages})
    assert (refused.status_code, "jinja2" in refused.text) == (400, True)
    shown = http.get("/metrics")
    assert (shown.status_code, "prometheus-client" in shown.text) == (501, True)


def test_a_core_imports_nothing_of_the_folder_that_the_server_was_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be that of a model, whose files are a stranger's."""
    (tmp_path / "msgpack.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    core = start_core("warning")
    core.connection.close()
    assert core.process.wait(60) == 0, "it ends as nobody is there to tell it what to load"

"""The child that reads foreign files: its limits hold, and whatever ends it is told in words."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path

import pytest

from exo_inference.foreign_files import ForeignFileError, MissingFile, ReadingFailed
from exo_inference.foreign_files import child as child_module
from exo_inference.foreign_files.architecture_json import WrongForm, decode, encode
from exo_inference.foreign_files.child import DEADLINE_SECONDS, Child
from exo_inference.foreign_files.pool import Pool
from exo_inference.planner import find_gpu, find_model, load_models, plan
from exo_inference.planner.parameters import EngineParameters


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.close()


def ask(child: Child, code: str, deadline_seconds: float = DEADLINE_SECONDS) -> object:
    """Have a child that obeys (see `obedient`) run a piece of code, as a parser gone wrong would."""
    return child.ask("run", {"code": code}, deadline_seconds=deadline_seconds)


@pytest.fixture
def obedient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Child:
    """A child with one task more, which runs what it is told; the rest of it is the real one."""
    (tmp_path / "obedient.py").write_text(
        "import sys\n"
        "from exo_inference.foreign_files import worker\n"
        "worker.TASKS = {**worker.TASKS, 'run': lambda asked, blobs: exec(asked['code'], {})}\n"
        "worker.IDLE_SECONDS = float(0.2)\n"
        "sys.exit(worker.main())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(child_module, "_MODULE", "obedient")
    return Child()


def test_a_machine_without_descriptors_is_no_fault_of_the_files(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(child_module.subprocess, "Popen", refuse)
        with pytest.raises(ReadingFailed, match="cannot be started: Too many open files"):
            child.ask("describe_model", {})
    with pytest.raises(ForeignFileError):
        child.ask("describe_model", {"path": "/nowhere", "name": None, "is_strict": False})


def test_priority_is_lower_while_python_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting takes more of the processor than most files do."""
    (tmp_path / "silent.py").write_text("input()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(child_module, "_MODULE", "silent")
    child = Child()
    process = child._running()
    wanted = os.getpriority(os.PRIO_PROCESS, 0) + child_module.NICENESS
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == wanted
    child.close()


def test_memory_ends_at_the_limit_and_the_next_request_is_answered(obedient: Child) -> None:
    with pytest.raises(ForeignFileError, match="takes more than 1024 MiB of memory"):
        ask(obedient, "x = bytearray(2 * 2**30)")
    assert ask(obedient, "1") is None
    obedient.close()


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("import os; os.kill(os.getpid(), 24)", ForeignFileError, "10 seconds of processor time"),
        ("import os; os.kill(os.getpid(), 11)", ForeignFileError, "crashed their reader"),
        ("import os; os.kill(os.getpid(), 9)", ReadingFailed, "was ended before it answered"),
        ("import os; os._exit(3)", ReadingFailed, "ended with status 3"),
        ("import os; os._exit(0)", ReadingFailed, "ended with status 0"),
        ("raise LookupError('\\x1b[2J')", ForeignFileError, r"broke on it \(LookupError\)"),
        ("raise RecursionError", ForeignFileError, "broke on it"),
    ],
    ids=["processor", "crash", "killed", "exit", "exit 0", "bug", "recursion"],
)
def test_each_end_has_its_words(
    obedient: Child, code: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ask(obedient, code)
    assert ask(obedient, "1") is None
    obedient.close()


def test_limits_are_those_of_the_process(obedient: Child) -> None:
    ask(
        obedient,
        "import os, resource as r\n"
        "assert r.getrlimit(r.RLIMIT_AS) == (2**30, 2**30)\n"
        "assert 10 < r.getrlimit(r.RLIMIT_CPU)[0] < 60\n"
        "assert r.getrlimit(r.RLIMIT_FSIZE) == (0, 0)\n"
        "assert open('/proc/self/oom_score_adj').read().strip() == '1000'\n"
        "assert os.getpriority(os.PRIO_PROCESS, 0) >= 5\n",
    )
    obedient.close()


def test_a_child_that_hangs_is_ended_at_the_deadline(obedient: Child) -> None:
    ask(obedient, "1")
    pid = obedient.pid
    with pytest.raises(ReadingFailed, match="took too long and was given up"):
        ask(obedient, "import time; time.sleep(600)", deadline_seconds=0.2)
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_went_to_sleep_is_started_again(obedient: Child) -> None:
    ask(obedient, "1")
    first = obedient._process
    assert first is not None
    assert first.wait(30) == 0  # nothing was asked for a while
    assert ask(obedient, "1") is None
    assert obedient._process is not first
    obedient.close()


def test_a_stopped_child_does_not_hold_a_large_request(obedient: Child) -> None:
    ask(obedient, "1")
    assert obedient.pid is not None
    os.kill(obedient.pid, signal.SIGSTOP)
    with pytest.raises(ReadingFailed, match="took too long"):
        obedient.ask("run", {"code": "1"}, (bytes(10_000_000),), deadline_seconds=0.2)


def test_secrets_of_the_environment_stay_outside(
    obedient: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    ask(obedient, "import os; assert 'hf_secret' not in str(dict(os.environ))")
    obedient.close()


def test_missing_is_told_from_unusable(child: Child, tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        child.ask("check_model", {"directory": str(tmp_path / "nothing")})
    (tmp_path / "file").touch()
    with pytest.raises(ForeignFileError, match="is not a directory"):
        child.ask("check_model", {"directory": str(tmp_path / "file")})


def test_fifty_at_once_start_two_children(tmp_path: Path) -> None:
    before = threading.active_count()
    pool = Pool()
    asked = [pool.submit("check_model", {"directory": str(tmp_path)}) for _ in range(50)]
    wait(asked, timeout=60)
    assert all(isinstance(each.exception(0), ForeignFileError) for each in asked)
    assert threading.active_count() <= before + 2
    assert pool.num_children <= 2


def test_a_request_that_nobody_waits_for_any_more_is_not_run(tmp_path: Path) -> None:
    pool = Pool(num_children=1)
    first = pool.submit("check_model", {"directory": str(tmp_path)})
    second = pool.submit("check_model", {"directory": str(tmp_path)})
    assert second.cancel()
    wait([first], timeout=60)
    third = pool.submit("check_model", {"directory": str(tmp_path)})
    assert isinstance(third.exception(60), ForeignFileError)


@pytest.mark.parametrize("name", sorted(load_models())[::7])
def test_a_model_survives_the_pipe(name: str) -> None:
    model = find_model(name)
    found = decode(encode(model))
    assert found.quantization == model.quantization
    assert repr(replace(found, quantization=None)) == repr(replace(model, quantization=None))
    assert len(found.layer_counts) == len(model.layer_counts)
    if model.cannot_size is None:
        gpu = find_gpu("gpub300")
        flags = EngineParameters()
        assert repr(plan(found, gpu, 8, flags)) == repr(plan(model, gpu, 8, flags))


def test_an_answer_of_another_form_is_not_believed() -> None:
    document = encode(find_model("Qwen/Qwen3-8B"))
    parts = document["parts"]
    root = parts[document["root"]]
    for wrong in (
        None,
        {},
        {"root": 10**6, "parts": parts},
        {"root": 0, "parts": parts},
        {"root": document["root"], "parts": [*parts[:-1], {**root, "hidden_size": "8"}]},
        {"root": document["root"], "parts": [*parts[:-1], {**root, "hidden_size": 2**100}]},
        {"root": document["root"], "parts": [*parts[:-1], {**root, "moe": document["root"]}]},
        {"root": document["root"], "parts": [*parts[:-1], {**root, "more": 1}]},
    ):
        with pytest.raises(WrongForm):
            decode(wrong)


def test_the_child_imports_no_client_and_no_server() -> None:
    """Few imports make it cheap, and leave less that a file could reach."""
    import subprocess
    import sys

    code = (
        "import exo_inference.foreign_files.worker, sys; "
        "print([m for m in ('httpx', 'pydantic', 'aiohttp', 'huggingface_hub', 'yaml') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

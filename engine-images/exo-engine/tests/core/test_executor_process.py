"""Steps that another process computes from frames alone give the same tokens."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from exo_engine.core.ranks import process
from exo_engine.core.start_up import StartUp
from exo_engine.errors import ConfigurationError, CoreFailed, ModelUnusable
from exo_engine.frames import FrameSocket, Message
from exo_engine.kernels import compilations
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams

OPTIONS = {
    "dtype": "float32", "device": "cpu", "block_size": 4, "max_model_len": 88, "num_threads": 1,
    "num_gpu_blocks_override": 24, "max_num_batched_tokens": 9, "max_num_seqs": 5,
}  # fmt: skip
PARAMS = [
    SamplingParams(temperature=0, max_tokens=20, logprobs=2, prompt_logprobs=1),
    SamplingParams(temperature=1.3, seed=1, max_tokens=20, repetition_penalty=1.3),
    SamplingParams(temperature=1.3, seed=2, max_tokens=20, logit_bias={3: 5.0}, min_tokens=4),
    SamplingParams(temperature=1.3, seed=3, max_tokens=20, stop_token_ids=(5, 6, 7)),
    SamplingParams(temperature=0, max_tokens=20, bad_words=((1, 2), (3,))),
]


@pytest.mark.slow
@pytest.mark.parametrize("is_ahead", [False, True], ids=["sync", "async"])
def test_tokens_are_those_of_this_process_in_scarce_blocks_and_chunks(
    tiny_model, prompts, is_ahead
):
    path = tiny_model("qwen3").path
    here = LLM(path, **OPTIONS)
    told: list[str] = []
    other = LLM(
        path, **OPTIONS, executor_backend="mp", async_scheduling=is_ahead, progress=told.append
    )
    try:
        assert "warming up" in told
        assert other.core.executor.pid != os.getpid()
        assert other.core.measurements.num_kv_blocks == here.core.measurements.num_kv_blocks
        found, wanted = other.generate(prompts, PARAMS), here.generate(prompts, PARAMS)
        assert [each.token_ids for each in found] == [each.token_ids for each in wanted]
        assert [e.rank for e in found[0].logprobs] == [e.rank for e in wanted[0].logprobs]
        assert len(found[0].prompt_logprobs) == len(wanted[0].prompt_logprobs)
        other.core.check_integrity()
        assert is_ahead or other.stats().num_preemptions_total > 0
        assert other.stats().num_used_blocks == 0
        _check_death(other, prompts)
    finally:
        other.close()


@pytest.mark.slow
def test_kernels_that_it_compiles_late_are_counted_here(tiny_model, tmp_path, monkeypatch):
    """A double there counts three at the end of the start, as if the first step had compiled them."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if any('executor_process' in word for word in sys.orig_argv):\n"
        "    from exo_engine.kernels.compilations import Compilations\n"
        "    Compilations.begin_serving = lambda self: setattr(self, 'num_late', 3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(compilations, "OWN", compilations.Compilations())
    llm = LLM(tiny_model("llama").path, **OPTIONS, executor_backend="mp")
    try:
        llm.generate([(1, 2), (3,)], SamplingParams(max_tokens=4))
        assert llm.stats().late_compilations_total == 3
    finally:
        llm.close()


def _check_death(llm: LLM, prompts) -> None:
    """The end of the process is told, and no step is waited for in vain."""
    os.kill(llm.core.executor.pid, signal.SIGKILL)
    with pytest.raises(CoreFailed, match="the process that computes steps ended with SIGKILL"):
        llm.generate(prompts, PARAMS)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kv_cache_bytes": 10, "num_gpu_blocks_override": None}, ConfigurationError, "is 10, but"),
        pytest.param(
            {"model_dir": Path("/nowhere")}, ModelUnusable, "nowhere", marks=pytest.mark.slow
        ),
    ],
)
def test_what_loading_raises_there_is_raised_here(tiny_model, changes, error, message):
    from exo_engine.config import EngineConfig
    from exo_engine.core.executor_process import ProcessExecutor

    options = {"model_dir": tiny_model("qwen3").path, **OPTIONS, **changes}
    with pytest.raises(error, match=message):
        ProcessExecutor(EngineConfig(**options), StartUp())


def test_a_large_frame_and_a_large_result_do_not_wait_for_each_other(monkeypatch):
    """A long prompt goes there while the log-probabilities of another one come back."""
    large, others = bytes(2**22), []

    def answer(theirs: socket.socket) -> list[Message]:
        with theirs:
            link = FrameSocket(theirs)
            link.send("result", large)
            return link.receive(is_waiting=True)

    class FakeProcess:
        """A thread that says much before it listens."""

        def __init__(self, command, *, pass_fds, stdin) -> None:
            others.append(pool.submit(answer, socket.socket(fileno=os.dup(pass_fds[0]))))

        def wait(self, timeout: float) -> int:
            return 0

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(process.subprocess, "Popen", FakeProcess)
        started = process.RankProcess((), ())
        try:
            started.send("step", large)
            started.receive(is_waiting=True)
            assert started.pop() == ("result", large)
            assert others[0].result() == [("step", large)]
        finally:
            started.close()

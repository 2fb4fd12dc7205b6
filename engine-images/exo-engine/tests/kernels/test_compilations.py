"""A kernel that is compiled while requests are served is counted and logged."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from types import SimpleNamespace
from typing import Any

from exo_engine import LLM, SamplingParams
from exo_engine.core import executor_process
from exo_engine.core.executor_process import ProcessExecutor
from exo_engine.kernels import compilations
from exo_engine.kernels.compilations import Compilations
from exo_engine.server.telemetry.metrics import Metrics
from triton import knobs

# As Triton calls its hooks.
KERNEL = {
    "key": "k",
    "repr": "attend_pages[num_warps=4](queries: *bf16)",
    "fn": SimpleNamespace(name="attend_pages", module="attention_kernels"),
    "compile": {},
    "is_manual_warmup": False,
    "already_compiled": False,
}


class Runtime:
    """A double of `triton.knobs.runtime`."""

    jit_post_compile_hook: Any = None


def test_only_what_is_compiled_while_serving_is_counted(caplog):
    runtime, found = Runtime(), Compilations()
    found.watch(runtime)
    found.watch(runtime)  # a second model of the process
    with caplog.at_level(logging.INFO):
        runtime.jit_post_compile_hook(**KERNEL)
        assert (found.num_late, caplog.records) == (0, [])
        found.begin_serving()
        runtime.jit_post_compile_hook(**KERNEL)
        runtime.jit_post_compile_hook(**KERNEL)
    assert found.num_late == 2
    assert "kernel attend_pages was compiled while requests were served" in caplog.text
    assert {each.levelno for each in caplog.records} == {logging.WARNING}
    found.begin_start()
    runtime.jit_post_compile_hook(**KERNEL)
    assert found.num_late == 2


def test_a_hook_that_was_there_is_still_called():
    runtime, told = Runtime(), []
    runtime.jit_post_compile_hook = lambda **kernel: told.append(kernel)
    Compilations().watch(runtime)
    runtime.jit_post_compile_hook(**KERNEL)
    assert told == [KERNEL]


def test_triton_calls_its_hooks_as_the_double_does():
    assert hasattr(knobs.runtime, "jit_post_compile_hook")
    assert set(inspect.signature(knobs.JITHook.__call__).parameters) == {"self", *KERNEL}


def test_the_number_comes_from_the_process_that_computes(monkeypatch):
    """Each kernel is told once, ahead of the result of its step."""
    there, here = Compilations(), Compilations()
    executor = object.__new__(ProcessExecutor)
    process = SimpleNamespace(received=deque())
    link = SimpleNamespace(send=lambda *message: process.received.append(message))
    told = 0
    for num_late, wanted in ((0, 0), (2, 2), (2, 2), (3, 3)):
        there.num_late = num_late
        monkeypatch.setattr(compilations, "OWN", there)
        told = executor_process.tell_late(link, told)
        link.send("result", b"")
        monkeypatch.setattr(compilations, "OWN", here)
        assert executor._take_in(process)
        assert process.received.popleft() == ("result", b"")
        assert here.num_late == wanted


def test_the_number_comes_to_metrics(tiny_model, monkeypatch):
    """A double of Triton compiles a kernel in the step of a request, and none while the engine starts."""
    runtime, own = Runtime(), Compilations()
    monkeypatch.setattr(compilations, "OWN", own)
    own.watch(runtime)
    llm = LLM(tiny_model("llama").path, device="cpu", dtype="float32")
    runtime.jit_post_compile_hook(**KERNEL)
    llm.generate([(1, 2)], SamplingParams(max_tokens=1))
    metrics = Metrics("m")
    for _ in range(2):
        metrics.apply_stats(llm.core.stats())
    labels = {"model_name": "m", "engine": "0"}
    read = metrics.registry.get_sample_value
    assert read("exo:late_kernel_compilations_total", labels) == 1

"""A kernel that is compiled while requests are served is counted and logged as a fault."""

from __future__ import annotations

import inspect
import logging
from types import SimpleNamespace
from typing import Any

from exo_engine import LLM, SamplingParams
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


def test_only_what_is_compiled_while_serving_is_a_fault(caplog):
    runtime, found = Runtime(), Compilations()
    found.watch(runtime)
    found.watch(runtime)  # a second model of the process
    with caplog.at_level(logging.ERROR):
        runtime.jit_post_compile_hook(**KERNEL)
        assert (found.num_late, caplog.records) == (0, [])
        found.begin_serving()
        runtime.jit_post_compile_hook(**KERNEL)
        runtime.jit_post_compile_hook(**KERNEL)
    assert found.num_late == 2
    assert "kernel attend_pages was compiled while requests were served" in caplog.text
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

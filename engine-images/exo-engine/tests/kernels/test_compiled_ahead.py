"""A start launches every kind of kernel that serving launches, so none is compiled while requests wait.

Kernels are not run here: what a launch is compiled by is compared, as Triton would find it in its cache.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from exo_engine import LLM, SamplingParams
from exo_engine.attention.cache_plan import plan_cache
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.attention.layer import AttentionLayer, Reach
from exo_engine.attention.layout import StepArrays, make_inputs
from exo_engine.attention.triton import TritonAttention
from exo_engine.kernels import compilations
from exo_engine.kernels.compilations import Compilations
from exo_engine.kernels.triton.launch import Launch
from exo_engine.layers import delta_net, embedding, latent, mlp, rms_norm
from exo_engine.weight_formats import fp8, int4, int8, plain
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from offline_compiler import compiled_key

from ..fake_gpu import give_zeros

pytestmark = pytest.mark.gpu_kernels

CPU = torch.device("cpu")
KINDS = {
    "full": AttentionLayer(8, 2, 32, 0.2),
    "one head": AttentionLayer(1, 1, 64, 0.2, has_sinks=True),
    "window": AttentionLayer(4, 2, 16, 0.2, Reach(window=600)),
    "latent": AttentionLayer(6, 1, 28, 0.2, num_latent=20),
}


@dataclass(frozen=True, eq=False)
class Kernel:
    """What Triton knows of a kernel's parameters where it compiles."""

    params: list[Any]


@cache
def as_compiled(kernel: InterpretedFunction) -> Kernel:
    """Return a kernel that the interpreter has as Triton compiles it."""
    return Kernel(JITFunction(kernel.fn, **kernel.kwargs).params)


class Compiler:
    """A double of what compiles a launch that is the first of its kind; results are zeros."""

    def __init__(self) -> None:
        self.known: set[object] = set()
        self.jit_post_compile_hook: Callable[..., object] | None = None

    def run(self, launch: Launch) -> None:
        give_zeros(launch)
        key = compiled_key(replace(launch, kernel=as_compiled(launch.kernel)))
        if key not in self.known and self.jit_post_compile_hook is not None:
            self.jit_post_compile_hook(fn=SimpleNamespace(name=launch.kernel.fn.__name__))
        self.known.add(key)


@pytest.fixture
def compiler(monkeypatch) -> Compiler:
    double = Compiler()
    monkeypatch.setattr(Launch, "run", lambda launch: double.run(launch))
    return double


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_single_tokens_of_any_context_have_kernels(compiler, name, is_fixed):
    layer, most, longest = KINDS[name], 5, 3000
    plan = plan_cache([layer], 16, KV_FORMATS["float32"])
    cache = KVCache([layer], plan, KV_FORMATS["float32"], 2, dtype=torch.float32, device=CPU)
    backend = TritonAttention([layer], cache, is_fixed=is_fixed)
    backend.compile_ahead(most, longest)
    ahead, compiler.known = compiler.known, set()
    contexts = {*range(1, 1200, 7), *range(1200, longest, 61), 512, 513, 600, 601, 1024, longest}
    for num, context in ((num, each) for num in range(1, most + 1) for each in contexts):
        own = np.arange(num + 1, dtype=np.int32)
        tables = (np.zeros((num, context // 16 + 1), dtype=np.int32),)
        lengths = np.full(num, context, dtype=np.int32)
        inputs = make_inputs(own[:-1], StepArrays(own, lengths, tables), block_size=16, device=CPU)
        backend.begin(inputs.layout)
        sinks = torch.zeros(layer.num_heads) if layer.has_sinks else None
        backend._attend(0, torch.zeros(num, layer.num_heads, layer.head_dim), sinks)
    assert len(ahead) > 1
    assert compiler.known == ahead


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        *(("llama", {"quantization": name}) for name in ("int4", "int8")),
        *(("qwen3-moe", {"quantization": name}) for name in ("fp8_per_block", "int4", "int8")),
        ("qwen3-moe", {"quantization": "fp8", "batch_invariant": True}),
        ("deepseek-v3", {"batch_invariant": True}),
    ],
    ids=str,
)
def test_mixed_steps_compile_nothing(compiler, tiny_model, monkeypatch, family, options):
    """Chunks of prompts beside answers, in steps of every size, each of which lies elsewhere in memory."""
    own = Compilations()
    own.watch(compiler)
    monkeypatch.setattr(compilations, "OWN", own)
    for module in (fp8, int4, int8, plain, delta_net, embedding, latent, mlp, rms_norm):
        monkeypatch.setattr(module, "is_for_triton", lambda device: True)
    llm = LLM(
        tiny_model(family).path,
        device="cpu",
        dtype="float32",
        attention_backend="triton",
        **options,
        max_model_len=256,
        max_num_seqs=5,
        max_num_batched_tokens=200,
    )
    assert compiler.known
    numbers = random.Random(3)
    lengths = (1, 2, 200, 150, 64, 33, 9, 230)
    prompts = [[numbers.randrange(100) for _ in range(length)] for length in lengths]
    params = [
        SamplingParams(temperature=0.0, max_tokens=numbers.randint(2, 24), ignore_eos=True)
        for _ in prompts
    ]
    found = llm.generate(prompts, params)
    assert [len(each.token_ids) for each in found] == [each.max_tokens for each in params]
    assert own.num_late == 0

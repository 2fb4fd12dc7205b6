"""With the CPU kernels a request has the same bits however it is scheduled."""

from __future__ import annotations

import json
import random

import pytest
from exo_engine.core import loading
from exo_engine.errors import ConfigurationError, ModelUnusable
from exo_engine.kernels.library import VARIABLE
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams

from ..cpu_kernels import PATHS, needs_kernels

OPTIONS = {"dtype": "bfloat16", "device": "cpu", "block_size": 16, "max_model_len": 80}
SCHEDULES = {
    "together": {},
    "in chunks": {"max_num_batched_tokens": 16},
    "two at a time": {"max_num_seqs": 2},
    "preempted": {"num_gpu_blocks_override": 16, "enable_prefix_caching": False},
    "on three threads": {"num_threads": 3},
}

KEPT = {(0, 0), (1, 0), (2, 0), (0, len(PATHS) - 1)}
"""Of families and paths, best first: each family on the best path, and one on the plainest."""

pytestmark = needs_kernels


def random_schedule(seed: int) -> dict[str, int | bool]:
    numbers = random.Random(seed)
    return {
        "max_num_seqs": numbers.randint(2, 9),
        "max_num_batched_tokens": numbers.randint(16, 100),
        "num_gpu_blocks_override": numbers.randint(16, 40),
        "enable_prefix_caching": numbers.random() < 0.5,
        "num_threads": numbers.randint(1, 3),
    }


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    numbers = random.Random(11)
    shared = [numbers.randrange(100) for _ in range(40)]
    own = [[numbers.randrange(100) for _ in range(numbers.randint(1, 60))] for _ in range(6)]
    return [*own, *([*shared, *tail[:9]] for tail in own[:3])]


def run(path, prompts, *, order=None, **options):
    """Tokens and log-probabilities of each prompt, sent in `order`; they are drawn with seeds of their own."""
    llm = LLM(path, **{**OPTIONS, **options})
    order = range(len(prompts)) if order is None else order
    params = [
        SamplingParams(temperature=0.8, max_tokens=12, logprobs=2, seed=index, ignore_eos=True)
        for index in order
    ]
    completions = llm.generate([prompts[index] for index in order], params)
    found = dict(zip(order, completions, strict=True))
    return [(found[i].token_ids, found[i].logprobs) for i in range(len(prompts))], llm


@pytest.mark.parametrize(
    ("family", "stored"),
    [
        ("qwen3", {"quantization": "int8"}),
        pytest.param("qwen3", {"quantization": "int4"}, marks=pytest.mark.slow),
        pytest.param("qwen3", {"quantization": "int4_per_group_128"}, marks=pytest.mark.slow),
        ("qwen3-half-windowed", {"kv_cache_dtype": "int8"}),
        pytest.param("gemma2", {"kv_cache_dtype": "int8"}, marks=pytest.mark.slow),
        pytest.param("gpt-oss", {"kv_cache_dtype": "int8"}, marks=pytest.mark.slow),
    ],
)
def test_bits_of_numbers_stored_smaller_do_not_depend_on_the_schedule(
    tiny_model, prompts, family, stored
):
    model = tiny_model(family).path
    alone, _ = run(model, prompts, **stored, max_num_seqs=1)
    for name, options in SCHEDULES.items():
        scheduled, _ = run(model, prompts, **stored, **options)
        assert scheduled == alone, name


@pytest.mark.parametrize(
    ("family", "path"),
    [
        pytest.param(family, path, marks=[] if (row, column) in KEPT else pytest.mark.slow)
        for row, family in enumerate(["qwen3", "qwen3-half-windowed", "qwen3-moe"])
        for column, path in enumerate(PATHS)
    ],
)
def test_bits_do_not_depend_on_the_schedule(tiny_model, prompts, family, path, monkeypatch):
    monkeypatch.setenv(VARIABLE, path)
    model = tiny_model(family).path
    alone, _ = run(model, prompts, max_num_seqs=1, enable_prefix_caching=False)
    for name, options in SCHEDULES.items():
        scheduled, llm = run(model, prompts, **options)
        assert scheduled == alone, name
        if name == "preempted":
            assert llm.stats().num_preemptions_total > 0
        if name == "together":  # and again, from what the prefix cache kept
            again, _ = run(model, prompts, **options)
            assert again == alone


@pytest.mark.parametrize(
    ("stored", "seeds"),
    [
        ({}, range(4)),
        pytest.param({}, range(4, 40), marks=pytest.mark.slow),
        *(
            pytest.param(each, range(40), marks=pytest.mark.slow)
            for each in (
                {"quantization": "int8"},
                {"quantization": "int4"},
                {"kv_cache_dtype": "int8"},
            )
        ),
    ],
)
def test_bits_do_not_depend_on_random_schedules(tiny_model, prompts, stored, seeds):
    model = tiny_model("qwen3-half-windowed").path
    alone, _ = run(model, prompts, **stored, max_num_seqs=1, enable_prefix_caching=False)
    for seed in seeds:
        numbers = random.Random(seed)
        order = numbers.sample(range(len(prompts)), len(prompts))
        scheduled, _ = run(model, prompts, order=order, **stored, **random_schedule(seed))
        assert scheduled == alone, (seed, random_schedule(seed), order)


@pytest.mark.parametrize(
    ("family", "stored"),
    [
        *(("qwen3", each) for each in ({}, {"quantization": "int4"}, {"kv_cache_dtype": "int8"})),
        ("qwen3-moe", {}),
        ("qwen3-moe", {"quantization": "int8"}),
    ],
)
def test_the_flag_is_taken_where_it_is_kept(tiny_model, prompts, family, stored):
    model = tiny_model(family).path
    flagged, _ = run(model, prompts, **stored, batch_invariant=True)
    assert flagged == run(model, prompts, **stored)[0]


@pytest.mark.parametrize(
    ("family", "options", "has_kernels", "reason"),
    [
        ("qwen3", {"dtype": "float32"}, True, "attention is computed by PyTorch"),
        ("qwen3", {"kv_cache_dtype": "fp8"}, True, "attention is computed by PyTorch"),
        ("qwen3", {}, False, "attention is computed by PyTorch"),
        ("qwen3-moe", {}, False, "attention is computed by PyTorch"),
        ("qwen3", {"quantization": "fp8"}, True, "PyTorch computes products of --quantization fp8"),
        ("gemma2", {}, True, "PyTorch computes norms behind attention and MLP, gates with GELU on"),
        ("gemma2", {}, False, "attention is computed by PyTorch"),
        ("gpt-oss", {}, True, "PyTorch computes clamped gates and biases of experts on a CPU"),
        ("deepseek-v2", {}, True, "PyTorch computes latent attention, shared experts on a CPU"),
        ("qwen3.5", {}, True, "PyTorch computes linear attention, gates of attention on a CPU"),
    ],
)
def test_the_flag_is_refused_where_it_is_not(
    tiny_model, family, options, has_kernels, reason, monkeypatch
):
    """It is known before the weights are read."""
    if not has_kernels:
        monkeypatch.setenv(VARIABLE, "off")
    monkeypatch.setattr(loading, "load_decoder", None)
    with pytest.raises(ConfigurationError, match=f"--batch-invariant cannot be kept: {reason}"):
        LLM(tiny_model(family).path, **{**OPTIONS, **options}, batch_invariant=True)


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("qwen3", {"hidden_size": 101}, "embedding and head of a hidden size of 101, products with 101"),
        ("qwen3", {"intermediate_size": 33}, "products with 33 inner numbers of an MLP on a CPU"),
        ("qwen3-moe", {"moe_intermediate_size": 33}, "products with 33 inner numbers of an expert on"),
    ],
)  # fmt: skip
def test_odd_sizes_are_named_before_the_weights_are_read(
    tiny_model, family, changes, reason, tmp_path, monkeypatch
):
    config = json.loads((tiny_model(family).path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelUnusable, match="safetensors"):  # where no bits are to be kept
        LLM(tmp_path, **OPTIONS)
    monkeypatch.setattr(loading, "load_decoder", None)
    with pytest.raises(ConfigurationError, match=f"PyTorch computes {reason}"):
        LLM(tmp_path, **OPTIONS, batch_invariant=True)


def test_attention_by_kernels_is_refused_before_the_weights_are_read(tiny_model, monkeypatch):
    monkeypatch.setattr(loading, "load_decoder", None)
    with pytest.raises(ConfigurationError, match="backend 'cpu' needs the compiled kernels"):
        LLM(tiny_model("qwen3").path, **{**OPTIONS, "dtype": "float32"}, attention_backend="cpu")

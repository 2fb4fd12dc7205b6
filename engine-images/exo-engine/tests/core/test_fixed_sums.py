"""`--batch-invariant` with a GPU's kernels, under the interpreter: bits do not depend on what runs beside."""

from __future__ import annotations

import random

import pytest
import torch
from exo_engine.core import loading
from exo_engine.errors import ConfigurationError
from exo_engine.kernels.triton import attention as launching
from exo_engine.kernels.triton.pointwise import normalise
from exo_engine.layers import delta_net, embedding, latent, mlp, rms_norm
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams
from exo_engine.weight_formats import fp8, int4, int8, plain

OPTIONS = {"device": "cpu", "dtype": "float32", "attention_backend": "triton", "max_model_len": 48}


@pytest.fixture(autouse=True)
def gpu(dots_in_one_order, monkeypatch):
    """Have every layer take the kernels of a GPU, and contexts of a few tokens be split."""
    for module in (delta_net, embedding, latent, mlp, rms_norm, fp8, int4, int8, plain):
        monkeypatch.setattr(module, "is_for_triton", lambda device: True)
    monkeypatch.setattr(launching, "FIXED_SEGMENT", 16)
    # PyTorch on a CPU computes what is left behind whole vectors otherwise; a GPU, each number alike.
    for function in (torch.sigmoid, torch.tanh, torch.exp):
        for owner in (torch, torch.Tensor):
            monkeypatch.setattr(owner, function.__name__, in_double(function))
    for name in ("gelu", "silu", "softplus"):
        function = getattr(torch.nn.functional, name)
        monkeypatch.setattr(torch.nn.functional, name, in_double(function))


def in_double(function):
    """Compute a function of single numbers so exactly that it does not matter how."""
    return lambda each, **options: function(each.double(), **options).to(each.dtype)


def run(path, prompts, num_tokens, **options):
    """Tokens and log-probabilities of each prompt."""
    return answers(LLM(path, **OPTIONS, batch_invariant=True, **options), prompts, num_tokens)


def answers(llm, prompts, num_tokens):
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, logprobs=2, ignore_eos=True)
    return [(each.token_ids, each.logprobs) for each in llm.generate(prompts, params)]


def random_schedule(seed: int) -> dict[str, int]:
    numbers = random.Random(seed)
    return {
        "max_num_seqs": numbers.randint(2, 5),
        "max_num_batched_tokens": numbers.choice((5, 9, 17, 100)),
        "block_size": 8,
        "num_gpu_blocks_override": numbers.choice((32, 48)),
    }


def prompts_of(seed: int) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(100) for _ in range(length)] for length in (3, 21, 10)]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "qwen3.5", "gemma4"])
def test_bits_are_those_of_a_request_alone(tiny_model, family):
    """In chunks beside another; with another's token; and alone."""
    options = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "enable_prefix_caching": False}
    llm = LLM(tiny_model(family).path, **OPTIONS, **options, batch_invariant=True)
    params = SamplingParams(temperature=0.0, max_tokens=2, logprobs=2, ignore_eos=True)
    prompts = prompts_of(1)[:2]
    together = llm.generate(prompts, params)[1]
    (alone,) = llm.generate(prompts[1:], params)
    assert (together.token_ids, together.logprobs) == (alone.token_ids, alone.logprobs)
    others = {**OPTIONS, **options, "attention_backend": "reference"}
    plain = LLM(tiny_model(family).path, **others)
    (expected,) = plain.generate(prompts[1:], params)
    assert alone.token_ids == expected.token_ids
    found, wanted = ([e.logprob for e in each.logprobs] for each in (alone, expected))
    assert found == pytest.approx(wanted, abs=1e-4)


OF_BYTES = ("fp8", "fp8_per_block", "fp8_per_tensor", "int8")
EACH_ONCE = [
    ("qwen3-moe", "int4"),
    ("gemma4", None),
    ("qwen3-next", None),
    ("gpt-oss", "fp8_per_block"),
    ("deepseek-v3", "int8"),
]
"""Each kind of attention and of experts, and four formats of weights."""
MODELS = [
    *(("qwen3", each) for each in (None, "int4", "int4_per_group_128", *OF_BYTES)),
    *(("qwen3-moe", each) for each in (None, "int4", *OF_BYTES)),
    ("gemma2", None),
    ("gemma4", None),
    ("gemma4-without-values", None),
    ("qwen3.5", None),
    ("qwen3-next", None),
    ("gpt-oss", "fp8_per_block"),
    ("gpt-oss", "int4"),
    ("deepseek-v2", None),
    ("deepseek-v2-groups", "fp8"),
    ("deepseek-v3", None),
    ("deepseek-v3", "int8"),
]
"""Kinds of layers, and how their weights are stored."""


def check_schedules(path, seed, num_schedules, quantization):
    """Hold answers equal alone, in any batch, in chunks, and on from what the prefix cache kept."""
    prompts = prompts_of(seed)
    options = {"max_num_seqs": 1, "max_num_batched_tokens": 96, "enable_prefix_caching": False}
    alone = run(path, prompts, 2, quantization=quantization, **options)
    for schedule in range(seed, seed + num_schedules * len(MODELS), len(MODELS)):
        options = random_schedule(schedule)
        llm = LLM(path, **OPTIONS, batch_invariant=True, quantization=quantization, **options)
        assert answers(llm, prompts, 2) == alone, options
        assert answers(llm, prompts, 2) == alone, "from the prefix cache"
        assert llm.stats().prefix_cache_hits_total > 0


SCHEDULES = [
    *(pytest.param(*each, 1, marks=pytest.mark.slow, id=f"{each}-one") for each in EACH_ONCE),
    *(pytest.param(*each, 3, marks=pytest.mark.equivalence, id=f"{each}-three") for each in MODELS),
]


@pytest.mark.parametrize(("family", "quantization", "num_schedules"), SCHEDULES)
def test_bits_are_the_same_under_random_schedules(
    tiny_model, monkeypatch, family, quantization, num_schedules
):
    """Each model has schedules of its own: those of equivalence three, a few slow ones one."""
    # An eighth of the time, for steps whose numbers nobody sees; the test above takes them.
    monkeypatch.setattr(loading, "warm_up", lambda *arguments: None)
    seed = MODELS.index((family, quantization))
    check_schedules(tiny_model(family).path, seed, num_schedules, quantization)


def test_what_depends_on_the_batch_is_refused_by_name(tiny_model, monkeypatch):
    for module in (delta_net, rms_norm):
        monkeypatch.setattr(module, "is_for_triton", lambda device: False)
    with pytest.raises(ConfigurationError, match="one order of sums for RMSNorm, _Weights"):
        run(tiny_model("qwen3.5").path, [[1]], 1)


@pytest.mark.parametrize("shape", [(3, 40), (2, 5, 16)])
def test_rows_are_normalised_as_pytorch_does(shape):
    torch.manual_seed(0)
    states, weight = torch.randn(shape), torch.rand(shape[-1]) + 0.5
    for each in (weight, None):
        expected = torch.nn.functional.rms_norm(states, shape[-1:], each, 1e-5)
        torch.testing.assert_close(normalise(states, each, 1e-5), expected, rtol=1e-6, atol=1e-6)

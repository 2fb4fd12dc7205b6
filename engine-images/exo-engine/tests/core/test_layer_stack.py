"""All layers in one call of the CPU kernels give the bits that one call after the other gives."""

from __future__ import annotations

import random

from exo_engine import pulse
from exo_engine.attention.base import AttentionBackend
from exo_engine.attention.cpu import CpuAttention
from exo_engine.kernels.stack import Stack
from exo_engine.llm import LLM
from exo_engine.models.config_file import read_spec
from exo_engine.models.decoder import Decoder
from exo_engine.sampling_params import SamplingParams

from ..cpu_kernels import needs_kernels

STACKED = {"llama-biases", "qwen3", "qwen3-half-windowed"}
"""Those whose layers must go in one call: dense, heads of a multiple of 16 numbers, turned whole."""

pytestmark = needs_kernels


def _generate(path):
    """Tokens and log-probabilities of prompts of several lengths, in chunks and then one by one."""
    llm = LLM(
        path,
        dtype="bfloat16",
        device="cpu",
        block_size=16,
        max_model_len=80,
        max_num_batched_tokens=24,
    )
    numbers = random.Random(5)
    prompts = [[numbers.randrange(100) for _ in range(length)] for length in (1, 7, 30, 45)]
    params = SamplingParams(temperature=0.0, max_tokens=10, logprobs=3, ignore_eos=True)
    completions = llm.generate(prompts, [params] * len(prompts))
    return [(each.token_ids, each.logprobs) for each in completions]


def test_one_call_computes_what_single_ones_do(tiny_model, any_family, monkeypatch):
    model, runs = tiny_model(any_family).path, []
    monkeypatch.setattr(Stack, "run", _counted(Stack.run, runs))
    before, forwards = pulse.OWN.num_layers, []
    monkeypatch.setattr(Decoder, "forward", _counted(Decoder.forward, forwards))
    together = _generate(model)
    num_layers = read_spec(model).num_layers
    assert pulse.OWN.num_layers == before + num_layers * len(forwards)
    assert runs or any_family not in STACKED, "no step went through the stack"
    if not runs:
        return  # these layers go one by one either way, and PyTorch's bits may differ from run to run
    monkeypatch.setattr(CpuAttention, "run_layers", AttentionBackend.run_layers)
    runs.clear()
    assert _generate(model) == together
    assert not runs
    assert pulse.OWN.num_layers == before + num_layers * len(forwards)


def _counted(run, runs):
    def counted(*args):
        runs.append(None)
        return run(*args)

    return counted

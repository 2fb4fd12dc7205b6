"""Greedy output in float32 is token for token that of `transformers`."""

from __future__ import annotations

import json

import pytest
import torch
from exo_engine.kernels import VARIABLE
from exo_engine.llm import LLM
from exo_engine.models.config_file import FAMILIES as ARCHITECTURES
from exo_engine.sampling_params import SamplingParams

from ..cpu_kernels import PATHS

FAMILIES = [
    "deepseek-v2",
    "deepseek-v2-groups",
    "deepseek-v3",
    "gemma2",
    "gemma3",
    "gemma4",
    "gemma4-without-values",
    "gpt-oss",
    "llama",
    "llama3-tied",
    "llama-biases",
    "llama-linear",
    "mistral-window",
    "qwen2",
    "qwen2-half-windowed",
    "qwen2-yarn",
    "qwen3",
    "qwen3-moe",
    "qwen3-moe-some-layers",
    "qwen3.5",
    "qwen3-next",
]
VARIANTS = {
    *("deepseek-v2-groups", "gemma4-without-values", "llama-biases", "llama-linear"),
    *("qwen2-half-windowed", "qwen2-yarn", "qwen3-moe-some-layers"),
}
"""Other settings of a family that is there."""
NUM_TOKENS = 12
MANY_TOKENS = 20
# A window gives blocks back; where kinds are mixed, a layer of each has blocks of its own.
SCARCE_BLOCKS = {
    "mistral-window": 11,
    "gemma2": 40,
    "gemma3": 56,
    "gemma4": 34,
    "gemma4-without-values": 56,
    "gpt-oss": 34,
    "qwen2-half-windowed": 34,
    "qwen3-moe-some-layers": 11,
    "qwen3.5": 14,
    "qwen3-next": 14,
}
OPTIONS = {"dtype": "float32", "device": "cpu", "block_size": 4, "max_model_len": 128}


def greedy(model, prompts, found, num_tokens=NUM_TOKENS) -> list[tuple[int, ...]]:
    """What `transformers` generates, which is quickly told where the engine found the same."""
    return [
        model.greedy(prompt, num_tokens, guess)
        for prompt, guess in zip(prompts, found, strict=True)
    ]


def generate(llm: LLM, prompts, num_tokens=NUM_TOKENS):
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return llm.generate(prompts, params)


def run(llm: LLM, prompts, num_tokens=NUM_TOKENS) -> list[tuple[int, ...]]:
    completions = generate(llm, prompts, num_tokens)
    llm.core.check_integrity()
    assert llm.stats().num_used_blocks == 0
    return [completion.token_ids for completion in completions]


def test_every_family_is_compared(tiny_model):
    configs = [json.loads((tiny_model(name).path / "config.json").read_text()) for name in FAMILIES]
    assert {name for config in configs for name in config["architectures"]} == ARCHITECTURES.keys()


@pytest.mark.parametrize("family", ["gemma4", "qwen3.5"])
def test_no_guess_changes_what_transformers_generates(family, tiny_model, prompts):
    model, prompt = tiny_model(family), prompts[2]
    generated = model.oracle.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=6,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens = tuple(generated[0, len(prompt) :].tolist())
    wrong = (*tokens[:2], (tokens[2] + 1) % 101, *tokens[3:])
    assert {model.greedy(prompt, 6, guess) for guess in ((), tokens, wrong)} == {tokens}


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[pytest.mark.slow] if f in VARIANTS else []) for f in FAMILIES],
)
def test_batched_unbatched_and_cached_output_is_the_oracles(family, tiny_model, prompts):
    model = tiny_model(family)
    batched = LLM(model.path, **OPTIONS)
    found = run(batched, prompts)
    tokens = greedy(model, prompts, found)
    assert found == tokens
    assert all(len(set(row)) > 4 for row in tokens), "a degenerate oracle proves nothing"

    # The same engine again: now everything full comes from the prefix cache.
    again = generate(batched, prompts)
    assert [completion.token_ids for completion in again] == tokens
    block_size = batched.core.config.block_size
    assert again[-1].num_cached_tokens >= 59 // block_size * block_size >= 48

    assert [run(batched, [prompt])[0] for prompt in prompts] == tokens


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_uncached_chunked_and_preempted_output_is_the_oracles(family, tiny_model, prompts):
    model = tiny_model(family)
    uncached = LLM(model.path, **OPTIONS, enable_prefix_caching=False)
    found = run(uncached, prompts, MANY_TOKENS)
    tokens = greedy(model, prompts, found, MANY_TOKENS)
    assert found == tokens
    assert run(uncached, prompts, MANY_TOKENS) == tokens
    assert uncached.stats().prefix_cache_hits_total == 0

    chunked = LLM(model.path, **OPTIONS, max_num_batched_tokens=7, max_num_seqs=4)
    assert run(chunked, prompts, MANY_TOKENS) == tokens
    assert chunked.stats().num_steps_total > 115 / 7

    ahead = LLM(model.path, **OPTIONS, async_scheduling=True)
    assert run(ahead, prompts, MANY_TOKENS) == tokens

    scarce_options = {**OPTIONS, "max_model_len": 80}
    for caching, is_ahead in ((True, False), (False, False), (True, True)):
        scarce = LLM(
            model.path,
            **scarce_options,
            num_gpu_blocks_override=SCARCE_BLOCKS.get(family, 24),
            enable_prefix_caching=caching,
            async_scheduling=is_ahead,
            max_num_batched_tokens=16,
            max_num_seqs=5,
        )
        assert run(scarce, prompts, MANY_TOKENS) == tokens
        assert is_ahead or scarce.stats().num_preemptions_total > 0


def test_config_of_older_transformers_gives_the_same_tokens(tiny_model, prompts, tmp_path):
    """`rope_theta` and `rope_scaling` at top level, as checkpoints before version 5 have them."""
    model = tiny_model("llama3-tied")
    config = json.loads((model.path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(model.path / "model.safetensors")

    found = run(LLM(tmp_path, **OPTIONS), prompts)

    assert found == greedy(model, prompts, found)


def test_sharded_checkpoint_gives_the_same_tokens(tiny_model, prompts, tmp_path):
    model = tiny_model("qwen3")
    model.oracle.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2

    found = run(LLM(tmp_path, **OPTIONS), prompts)

    assert found == greedy(model, prompts, found)


@pytest.mark.parametrize(
    ("dtype", "kernels"),
    [("float16", "off"), ("bfloat16", "off"), *(("bfloat16", path) for path in PATHS)],
)
@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
def test_sixteen_bit_output_is_close_to_the_oracles(
    tiny_model, prompts, family, dtype, kernels, monkeypatch
):
    """The first token's likeliest candidates agree, within the precision there is."""
    model = tiny_model(family)
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=3)
    exact = LLM(model.path, **OPTIONS).generate(prompts, params)
    monkeypatch.setenv(VARIABLE, kernels)
    rough = LLM(model.path, **{**OPTIONS, "dtype": dtype}).generate(prompts, params)
    for a, b in zip(exact, rough, strict=True):
        assert dict(b.logprobs[0].top)[a.token_ids[0]] == pytest.approx(
            a.logprobs[0].logprob, abs=0.35 if dtype == "bfloat16" else 0.05
        )

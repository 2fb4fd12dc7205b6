"""What the engine's tests share: tiny random models, written to disk by `transformers`."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Triton's kernels run on the CPU here. It is read when Triton is imported.
os.environ["TRITON_INTERPRET"] = "1"

VOCAB_SIZE = 101

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Large enough that the likeliest token stands out and changes from step to step.
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

_MIXTURE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

_LATENT = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "num_key_value_heads": 6,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}

# Name -> (transformers class prefix, configuration over the common one).
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3-tied": ("Llama", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "llama-linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    "mistral-window": ("Mistral", {"sliding_window": 13, "head_dim": 12}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-half-windowed": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": _YARN}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    # What three ranks can share.
    "qwen3-three": (
        "Qwen3",
        {"head_dim": 16, "num_key_value_heads": 3, "intermediate_size": 96},
    ),
    "qwen3-half-windowed": (
        "Qwen3",
        {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
    ),
    "qwen3-moe": ("Qwen3Moe", {**_MIXTURE, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3.5": (
        "Qwen3_5",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    ),
    "deepseek-v2": ("DeepseekV2", {**_LATENT, "q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek-v2-groups": (
        "DeepseekV2",
        {
            **_LATENT,
            "q_lora_rank": 20,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "rope_parameters": {**_YARN, "mscale": 0.7, "mscale_all_dim": 0.9},
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {
            **_LATENT,
            "q_lora_rank": 20,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 16,
            "sliding_window": 9,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
            "num_hidden_layers": 4,
            "tie_word_embeddings": False,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "head_dim": 16,
            "sliding_window": 9,
            "query_pre_attn_scalar": 24,
            "num_hidden_layers": 6,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    # Its last layers read keys and values of earlier ones, and full layers have larger heads.
    "gemma4": (
        "Gemma4",
        {
            "head_dim": 16,
            "global_head_dim": 24,
            "sliding_window": 9,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 3,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": False,
        },
    ),
    "gemma4-without-values": (
        "Gemma4",
        {
            "head_dim": 16,
            "global_head_dim": 24,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": 9,
            "num_hidden_layers": 6,
            "hidden_size_per_layer_input": 0,
            "tie_word_embeddings": False,
        },
    ),
    "gpt-oss": (
        "GptOss",
        {
            "head_dim": 16,
            "sliding_window": 9,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "swiglu_limit": 1.0,
            "rope_parameters": {**_YARN, "truncate": False},
        },
    ),
    "qwen3-next": (
        "Qwen3Next",
        {
            **_MIXTURE,
            "head_dim": 16,
            "num_hidden_layers": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "shared_expert_intermediate_size": 20,
        },
    ),
    "qwen3-moe-some-layers": (
        "Qwen3Moe",
        {**_MIXTURE, "mlp_only_layers": [1], "use_sliding_window": True, "sliding_window": 11},
    ),
}


@dataclass(frozen=True)
class TinyModel:
    """A random model on disk, and the same model in `transformers`."""

    path: Path
    oracle: Any

    def greedy(
        self, prompt: tuple[int, ...], num_tokens: int, guess: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """What `transformers` generates after a prompt, one token at a time without a cache.

        Args:
            prompt: its token ids.
            num_tokens: how many follow.
            guess: tokens that are expected. One pass tells of all of them whether each is the likeliest one
                after those before it, so that a right guess takes one pass, and a wrong one changes no token.
        """
        import torch

        found: tuple[int, ...] = ()
        while len(found) < num_tokens:
            drafted = guess[len(found) : num_tokens - 1] if guess[: len(found)] == found else ()
            with torch.inference_mode():
                logits = self.oracle(torch.tensor([[*prompt, *found, *drafted]])).logits
            likeliest = logits[0, len(prompt) + len(found) - 1 :].argmax(-1).tolist()
            num_right = 0
            while num_right < len(drafted) and drafted[num_right] == likeliest[num_right]:
                num_right += 1
            found = (*found, *likeliest[: num_right + 1])
        return found


@pytest.fixture
def dots_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Triton's interpreter add up the numbers of every dot product in one order, as a GPU does.

    It leaves products of tiles to BLAS, which chooses an order by place and shape on processors with AVX2 alone.
    """
    import numpy as np
    from triton.runtime.interpreter import np as numbers_of_interpreter

    assert numbers_of_interpreter is np
    monkeypatch.setattr(np, "matmul", partial(np.einsum, "...ik,...kj->...ij"))


def pytest_runtest_setup() -> None:
    if "triton.runtime.interpreter" in sys.modules:
        from .quick_interpreter import quicken

        quicken()


@pytest.fixture(autouse=True)
def threads_of_torch() -> Iterator[None]:
    """Leave PyTorch as many threads as before: an engine sets those of its process.

    More threads than cores wait for each other with busy loops, in every test that follows.
    """
    torch = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(_threads_of_a_new_process() if before is None else before)


@cache
def _threads_of_a_new_process() -> int:
    """Return how many threads PyTorch begins with: where a test's engine was the first to import it, nobody saw."""
    code = "import torch; print(torch.get_num_threads())"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(told.stdout)


@pytest.fixture(params=FAMILIES)
def any_family(request: pytest.FixtureRequest) -> str:
    """Each name in FAMILIES."""
    return str(request.param)


@pytest.fixture(scope="session")
def tiny_config() -> Callable[[str], Any]:
    """Return a function from a name in FAMILIES to the configuration in `transformers`."""
    import transformers

    def make(family: str) -> Any:
        prefix, overrides = FAMILIES[family]
        has_text = prefix in ("Gemma3", "Gemma4", "Qwen3_5")
        kind = f"{prefix}TextConfig" if has_text else f"{prefix}Config"
        names = [f"{prefix}ForCausalLM"]
        return getattr(transformers, kind)(**{**_COMMON, **overrides, "architectures": names})

    return make


@pytest.fixture(scope="session")
def tiny_model(
    tmp_path_factory: pytest.TempPathFactory, tiny_config: Callable[[str], Any]
) -> Iterator[Callable[..., TinyModel]]:
    """Return a function from a name in FAMILIES to a model, built once per session."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    built: dict[str, TinyModel] = {}

    def build(family: str) -> TinyModel:
        if family not in built:
            config = tiny_config(family)
            torch.manual_seed(len(family))
            oracle = getattr(transformers, config.architectures[0])(config).eval()
            buffers = (pair for pair in oracle.named_buffers() if pair[0].endswith("layer_scalar"))
            for name, parameter in [*oracle.named_parameters(), *buffers]:
                # Fresh biases are zeros and norms are ones: make them matter.
                if parameter.ndim == 1 or name.endswith("_bias"):
                    torch.nn.init.normal_(
                        parameter, mean=1.0 if "norm" in name or "scalar" in name else 0.0, std=0.3
                    )
            path = tmp_path_factory.mktemp(family)
            oracle.save_pretrained(path)
            built[family] = TinyModel(path, oracle)
        return built[family]

    yield build
    built.clear()


@pytest.fixture(scope="session")
def plain() -> ModuleType:
    """Return `sampling/plain_sampler.py`, which tests of more than one folder hold the engine equal to."""
    path = Path(__file__).parent / "sampling" / "plain_sampler.py"
    spec = importlib.util.spec_from_file_location("plain_sampler", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def prompts() -> list[tuple[int, ...]]:
    """Five random prompts of very different lengths."""
    numbers = random.Random(7)
    return [
        tuple(numbers.randrange(VOCAB_SIZE) for _ in range(length)) for length in (1, 4, 17, 33, 60)
    ]

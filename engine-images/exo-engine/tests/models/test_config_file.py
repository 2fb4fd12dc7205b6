"""What config.json may say, and what is answered when it says something else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from exo_engine.attention.cache_plan import plan_cache
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.errors import ModelUnusable
from exo_engine.models.config_file import limits_of, read_spec

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}


@pytest.fixture
def spec_of(tmp_path):
    def write_and_read(*, base=LLAMA, **changes):
        config = {k: v for k, v in {**base, **changes}.items() if v is not ...}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return read_spec(tmp_path)

    return write_and_read


DEEPSEEK = {
    **LLAMA,
    "architectures": ["DeepseekV2ForCausalLM"],
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
}
NEXT = {
    **LLAMA,
    "architectures": ["Qwen3NextForCausalLM"],
    "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
GEMMA2 = {**LLAMA, "architectures": ["Gemma2ForCausalLM"], "hidden_act": "gelu_pytorch_tanh"}
GEMMA3 = {**GEMMA2, "architectures": ["Gemma3ForCausalLM"]}
GEMMA4 = {**GEMMA2, "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 6}
GPT_OSS = {
    **LLAMA,
    "architectures": ["GptOssForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def test_llama(spec_of):
    spec = spec_of()
    assert (spec.head_dim, spec.num_kv_heads, spec.windows) == (16, 2, (None, None))
    assert spec.rope.theta == 10000.0
    assert spec.eos_token_ids == (2,)
    assert limits_of(spec).checkpoint_dtype == "bfloat16"
    assert limits_of(spec).max_position_embeddings == 512
    plan = plan_cache(spec.attention_layers, 1, KV_FORMATS["bfloat16"])
    assert plan.block_bytes == 2 * 2 * 2 * 16 * 2


def test_generation_config_names_end_of_sequence_tokens_first(spec_of, tmp_path):
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert spec_of().eos_token_ids == (7, 2)


def test_defaults_of_each_family(spec_of):
    assert spec_of(num_key_value_heads=...).num_kv_heads == 4
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"]}
    assert spec_of(base=mistral).windows == (4096, 4096)
    assert spec_of(base=mistral, sliding_window=None).windows == (None, None)
    qwen2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 8}
    assert spec_of(base=qwen2).has_qkv_bias
    assert spec_of(base=qwen2, use_sliding_window=False).windows == (None, None)
    assert spec_of(base=qwen2, use_sliding_window=True, max_window_layers=1).windows == (None, 8)
    by_type = spec_of(
        base=qwen2,
        use_sliding_window=True,
        layer_types=["sliding_attention", "full_attention"],
    )
    assert by_type.windows == (8, None)
    qwen3 = spec_of(base={**LLAMA, "architectures": ["Qwen3ForCausalLM"]})
    assert (qwen3.head_dim, qwen3.has_qk_norm, qwen3.has_qkv_bias) == (128, True, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures is .'GPT2LMHeadModel'.*Llama"),
        ({"architectures": ...}, "architectures is None, expected a list"),
        ({"hidden_size": ...}, "hidden_size is missing, expected an integer"),
        ({"hidden_size": "64"}, "hidden_size is '64', expected an integer"),
        ({"hidden_size": 66}, "hidden_size is 66, expected a multiple of num_attention_heads"),
        ({"vocab_size": 0}, "vocab_size is 0, expected an integer of 1 or more"),
        ({"vocab_size": True}, "vocab_size is True, expected an integer"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1.0, expected a number above 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, expected a divisor"),
        ({"head_dim": 15}, "head_dim is 15, expected an even number"),
        ({"vocab_size": 10**30}, "vocab_size is 1000.*expected an integer of at most"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, expected 10000 or fewer"),
        ({"rope_theta": 10**400}, "a number of 401 digits, expected at most 40"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected silu"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        (
            {"eos_token_id": list(range(2000))},
            "eos_token_id is a list of.*, expected 1024 tokens at most",
        ),
        ({"rope_theta": 1.0, "rope_scaling": YARN}, "rope_theta is 1.0, expected a number above 1"),
        (
            {"rope_scaling": {**YARN, "beta_fast": 1e308}},
            "beta_fast is 1e.308, expected from 1e-06 to 1e.06",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantized \(gptq\)"),
        ({"rope_scaling": 4}, "rope_scaling is 4, expected an object"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_type is 'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type is 'longrope'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_key(spec_of, tmp_path, changes, message):
    with pytest.raises(ModelUnusable, match=message) as caught:
        spec_of(**changes)
    assert str(tmp_path / "config.json") in caught.value.message
    assert caught.value.exit_code == 78


V3 = {"architectures": ["DeepseekV3ForCausalLM"]}


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (DEEPSEEK, {"attention_bias": True}, "attention_bias is True, expected false"),
        (DEEPSEEK, {"mlp_bias": True}, "mlp_bias is True, expected false"),
        (DEEPSEEK, {"qk_rope_head_dim": 7}, "qk_rope_head_dim is 7, expected an even number"),
        (DEEPSEEK, {"moe_layer_freq": 2}, "moe_layer_freq is 2, expected 1"),
        (DEEPSEEK, {"n_routed_experts": 10**6}, "n_routed_experts is 1000000, expected 32768 or"),
        (DEEPSEEK, {"norm_topk_prob": True}, "norm_topk_prob is True, expected false"),
        (DEEPSEEK, {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc', expected one of gre"),
        (DEEPSEEK, {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid', expected softmax"),
        (DEEPSEEK, {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, expected at most 8"),
        (
            {**DEEPSEEK, **V3, "first_k_dense_replace": 0},
            {"topk_method": "greedy"},
            "topk_method is 'greedy', expected one of",
        ),
        (
            {**DEEPSEEK, **V3, "first_k_dense_replace": 0},
            {"n_group": 3},
            "n_group is 3, expected a d",
        ),
        (
            {**DEEPSEEK, **V3, "first_k_dense_replace": 0},
            {"n_group": 8},
            "n_group is 8, expected gro",
        ),
        (
            {**DEEPSEEK, **V3, "first_k_dense_replace": 0},
            {"topk_group": 5},
            "topk_group is 5, expec",
        ),
        (NEXT, {"num_experts": ...}, "num_experts is missing, expected an integer"),
        (NEXT, {"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5, expected 1.0"),
        (GEMMA2, {"hidden_activation": "relu"}, "hidden_activation is 'relu', expected gelu_pyt"),
        (GEMMA2, {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        (GEMMA2, {"layer_types": ["full_attention"]}, "layer_types is .*, expected 2 of sliding_"),
        (GEMMA2, {"attn_logit_softcapping": 0}, "attn_logit_softcapping is 0.0, expected a number"),
        (GEMMA3, {"attn_logit_softcapping": 50}, "attn_logit_softcapping is 50, expected null"),
        (GEMMA3, {"rope_parameters": {"full_attention": 3}}, "full_attention is 3, expected an o"),
        (GEMMA4, {"enable_moe_block": True}, "enable_moe_block is True, expected false"),
        (GEMMA4, {"global_head_dim": 3}, "global_head_dim is 3, expected an even number"),
        (GEMMA4, {"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5, expected fewer"),
        (GEMMA4, {"num_kv_shared_layers": 99}, "num_kv_shared_layers is 99, expected fewer"),
        (GEMMA4, {"vocab_size_per_layer_input": 7}, "vocab_size_per_layer_input is 7, expected an"),
        (
            GEMMA4,
            {"attention_k_eq_v": True, "num_global_key_value_heads": 3},
            "num_global_key_value_heads is 3, expected a divisor",
        ),
        (
            GEMMA4,
            {"per_layer_config": {"5": {"head_dim": 7}}},
            "per_layer_config.5.head_dim is 7, expected an even number",
        ),
        (
            {**GEMMA4, "layer_types": ["sliding_attention", "full_attention"] * 3},
            {"per_layer_config": {"1": {"head_dim": 16}, "3": {"head_dim": 16}, "5": {}}},
            "per_layer_config is .* expected the same in all full layers",
        ),
        (GEMMA4, {"per_layer_config": {"5": 1}}, "per_layer_config.5 is 1, expected an object"),
        (GPT_OSS, {"num_local_experts": 10**6}, "num_local_experts is 1000000, expected 32768 or"),
        (GPT_OSS, {"num_experts_per_tok": 5}, "num_experts_per_tok is 5, expected at most 4"),
        (GPT_OSS, {"swiglu_limit": -1}, "swiglu_limit is -1.0, expected a number above 0"),
        (GPT_OSS, {"swiglu_limit": 3.4e38}, "swiglu_limit is 3.4e.38, expected at most 65504"),
        (
            DEEPSEEK,
            {"rope_scaling": {**YARN, "mscale_all_dim": 1e300}},
            "rope_scaling.mscale_all_dim is 1e.300, expected at most 1000",
        ),
        (
            DEEPSEEK,
            {"rope_scaling": {**YARN, "mscale": 1e300, "mscale_all_dim": 1}},
            "rope_scaling.mscale is 1e.300, expected at most 1000",
        ),
    ],
)
def test_what_a_family_cannot_compute_is_refused_by_key(spec_of, base, changes, message):
    with pytest.raises(ModelUnusable, match=message):
        spec_of(base=base, **changes)


def test_layers_of_gemma_differ_in_angles_and_heads(spec_of):
    third = spec_of(base={**GEMMA3, "num_hidden_layers": 6})
    assert third.windows == (*[4096] * 5, None)
    assert [third.heads(layer).rope.theta for layer in (0, 5)] == [10_000.0, 1_000_000.0]
    third = spec_of(
        base={**GEMMA3, "num_hidden_layers": 6}, rope_theta=5e5, rope_local_base_freq=100
    )
    assert [third.heads(layer).rope.theta for layer in (0, 5)] == [100.0, 5e5]
    fourth = spec_of(base=GEMMA4, num_kv_shared_layers=1, sliding_window_pattern=2,
                     layer_types=["sliding_attention", "full_attention"] * 3)  # fmt: skip
    assert [layer.kv_layer for layer in fourth.attention_layers] == [*[None] * 5, 3]
    assert [layer.head_dim for layer in fourth.attention_layers] == [256, 512] * 3
    assert (fourth.heads(1).rope.kind, fourth.heads(1).num_turned) == ("proportional", 512)
    objects = {str(layer): {"head_dim": 32} for layer in (1, 3, 5)}
    own = spec_of(base=GEMMA4, per_layer_config=objects, head_dim=16,
                  layer_types=["sliding_attention", "full_attention"] * 3)  # fmt: skip
    assert [layer.head_dim for layer in own.attention_layers] == [16, 32] * 3


AHEAD = {
    "DeepSeek-V2": (DEEPSEEK, None),
    "DeepSeek-V3": ({**DEEPSEEK, **V3, "first_k_dense_replace": 0}, "model.layers.2."),
    "Qwen3.5": ({**LLAMA, "architectures": ["Qwen3_5ForCausalLM"]}, "mtp."),
    "Qwen3-Next": (NEXT, "mtp."),
    "Llama": (LLAMA, None),
    "Gemma 2": (GEMMA2, None),
    "gpt-oss": (GPT_OSS, None),
}


@pytest.mark.parametrize("family", AHEAD)
def test_what_guesses_ahead_is_left_aside_where_checkpoints_of_the_family_have_it(spec_of, family):
    """Elsewhere such a tensor is one that nobody knows, and the checkpoint is refused."""
    base, own = AHEAD[family]
    spec = spec_of(base={**base, "full_attention_interval": 2})
    names = ("model.layers.2.", "model.layers.1.", "mtp.")
    assert [name for name in names if spec.ignores(f"{name}mlp.up_proj.weight")] == (
        [] if own is None else [own]
    )


def test_latent_attention_is_cached_as_one_row_per_token(spec_of):
    spec = spec_of(base=DEEPSEEK)
    plan = plan_cache(spec.attention_layers, 1, KV_FORMATS["bfloat16"])
    assert plan.block_bytes == 2 * (512 + 64) * 2
    assert spec.latent.query_rank is None
    assert spec_of(base=DEEPSEEK, q_lora_rank=...).latent.query_rank == 1536


def test_part_of_a_head_that_is_turned_may_stand_anywhere(spec_of):
    assert spec_of(base=NEXT, head_dim=32).heads(1).num_turned == 8
    assert spec_of(base=NEXT, head_dim=32, partial_rotary_factor=0.5).heads(1).num_turned == 16
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.75}
    assert spec_of(base=NEXT, head_dim=32, rope_parameters=rope).heads(1).num_turned == 24


def test_caps_and_windows_of_gemma_2_are_per_layer(spec_of):
    first, second = spec_of(base=GEMMA2).attention_layers
    assert (first.reach.window, first.soft_cap, first.scale) == (4096, 50.0, 256**-0.5)
    assert (second.reach.window, second.soft_cap) == (None, 50.0)
    uncapped = spec_of(base=GEMMA2, attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (uncapped.soft_cap, uncapped.logit_cap) == (None, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ('{"a":' + "[" * 100_000, "nested deeper than 64 levels"),
        ("[1]", "expected a JSON object"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelUnusable, match=message) as caught:
        read_spec(tmp_path)
    assert str(path) in caught.value.message


def test_a_missing_directory_and_a_missing_file_are_told_apart(tmp_path):
    with pytest.raises(ModelUnusable, match="nowhere does not exist or is not a directory"):
        read_spec(tmp_path / "nowhere")
    with pytest.raises(ModelUnusable, match=r"config\.json does not exist") as caught:
        read_spec(tmp_path)
    assert "config.json" in caught.value.hint


def test_reading_a_configuration_imports_no_torch():
    """The API process reads configurations and must start at once."""
    code = (
        "import sys, exo_engine, exo_engine.models.config_file, exo_engine.models.qwen3, "
        "exo_engine.core.scheduling.scheduler, exo_engine.models.checkpoint, exo_engine.config; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'pydantic')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

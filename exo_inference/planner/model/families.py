"""What sets each family of decoder models apart from Llama, as a table.

`layers.py` reads the table; the shapes themselves come from the config. Each row but those of `UNCHECKED` was
checked by instantiating the family's published configs (transformers 5.23.0, meta device) and comparing the
parameter counts; `tests/planner/test_architecture.py` repeats the comparison against the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp:
    """What `planner/llama_cpp` asks of a family whose graph in llama.cpp its rules were read off or checked on.

    Attributes:
        reads_windows: of layers with windows its cache holds no more than these; else it keeps all tokens of every layer.
        widens_70b: values of a dense model with 80 layers have more bits (src/llama-quant.cpp, `LLM_TYPE_70B`).
        experts: the type of experts in files of every name, where the quantizer refuses to change it (`--allow-requantize`);
            public files of gpt-oss from Q2_K to Q8_0 differ by 5 % alone.
        loads_drafting: prediction layers of a file are loaded. DeepSeek's files have none, GLM's are left out.
    """

    reads_windows: bool = True
    widens_70b: bool = False
    experts: Literal["", "MXFP4"] = ""
    loads_drafting: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """How a family's decoder layer differs from Llama's.

    Attributes:
        qkv_bias, o_bias, mlp_bias: biases; None for qkv: as `attention_bias` says.
        qk_norm: one norm per head, one over all heads, or none.
        norms: vectors of hidden size per layer.
        norm_bias: norms have a bias as well.
        gated_mlp: three matrices rather than two.
        ties_by_default: embeddings are shared with the output head unless the config says otherwise.
        default_head_dim: where the config has none and it is not hidden size / heads.
        rope_caches: rotary tables that vLLM keeps (one per kind of attention layer).
        rope_stretch: how many times the context those are long (multimodal rotary positions: four).
        plain_windows: the second table is that of layers with a window, which `rope_scaling` does not stretch and
            `global_head_dim` does not widen (vLLM's models/gemma3.py and gemma4.py, `get_rope`).
        states_stretched_length: `max_position_embeddings` is what `rope_scaling` stretches to, which vLLM does not multiply
            by its factor again (config/model.py `_get_and_verify_max_len`); the rotary table is as long as the product.
        fills_qkv: vLLM has rows for keys and values in every layer, also where the checkpoint has none (gemma4.py,
            `QKVParallelLinear`: layers that share a cache, and values that are keys).
        partial_rotary: the share of a head that is rotated where config.json does not say it (its class's default).
        positions: rows added to a learned position table; None: no such table.
        unused_positions: of that table, which no token of a prompt has (RoBERTa counts from its padding on).
        pools: an encoder ends in a dense layer over the first token, whatever its class.
        llama_cpp: how llama.cpp computes it; None where that is not known, and nothing is told.
        config_parts: objects of config.json that hold the fields of attention and experts.
        with_rotary: the family that a file with rotary positions is of, which no `model_type` says (jinaai/jina-embeddings-v3).
        min_batched_tokens: vLLM raises max-num-batched-tokens to the largest image or video item.
        layout: how the config describes the layers. `uniform` is one kind of decoder layer with variations;
            the others have a function of their own in `layers.py`.
        others_are: kind of the layers that a list of attending ones leaves out.
        full_every: where only a window says which layers use it, each N-th attends to everything; 0: none.
        full_first: where the config's class has windows only if asked for: layers that see everything before they
            begin, unless `max_window_layers` says otherwise (transformers 5.23.0, Qwen2Config).
        windows_are: kind of the layers between them; chunks need no `sliding_window`.
        multi_query: one key-value head unless `multi_query` is false or `new_decoder_architecture` true;
            the latter has two norms.
        has_value_dim: `v_head_dim` is the size of the values.
        has_global_heads: `global_head_dim` and `num_global_key_value_heads` are those of full layers.
        shares_queries: queries go through `share_q_dim` dimensions and a norm (Step-3).
        gates_attention: the output is gated unless `attn_output_gate` says otherwise.
        gates_heads: one gate per head.
        bias_fields: where the config says that projections have biases; the first that is there counts.
        optional_qk_norm: what `use_qk_norm` stands for.
        sinks: layers with a learned sink per head.
        mlp_multiple: width of the feed-forward in hidden sizes where the config has none.
        rounds_mlp_width: the width is two thirds of what the config says, rounded up.
        mlp_width_field: field with the width of dense layers, if it has a name of its own.
        activation_vectors: learned numbers of the activation.
        shared_width_field: field with the width of shared experts, if it has a name of its own.
        experts_beside_mlp: experts stand beside the dense feed-forward where `enable_moe_block` is set.
        gates_shared_experts, corrects_experts, biases_experts: a gate for shared experts; a correction of
            the router's scores; biases of router and experts.
        pads_experts: vLLM pads the experts (its Marlin kernel for MXFP4).
        per_layer_inputs: each layer has an embedding of its own (`hidden_size_per_layer_input`).
        altup: alternating updates and a low-rank branch.
        embedding_norm, lm_head_bias: a norm after the embedding; a bias of the output head.
        gates_experts: experts are gated though dense feed-forwards are not.
        mlp_divisor: config.json has so many times the width of the feed-forward (Molmo: both gated matrices').
        adaptive_norms: width of what scales a norm by the delay of speech (Voxtral Realtime).
        expands_latents: vLLM caches keys and values of each head, as long as keys, and not the latent (minicpm3.py).
        gates_streams: several residual streams with a gate each around attention and feed-forward.
    """

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = None
    qk_norm: Literal["none", "head", "full"] = "none"
    norms: int = 2
    norm_bias: bool = False
    gated_mlp: bool = True
    ties_by_default: bool = False
    default_head_dim: int | None = None
    rope_caches: int = 1
    rope_stretch: int = 1
    plain_windows: bool = False
    states_stretched_length: bool = False
    fills_qkv: bool = False
    partial_rotary: float | None = None
    positions: int | None = None
    unused_positions: int = 0
    pools: bool = False
    llama_cpp: LlamaCpp | None = None
    config_parts: tuple[str, ...] = ()
    with_rotary: str = ""
    min_batched_tokens: int = 0
    layout: Literal["uniform", "pattern", "blocks", "compressed", "encoder_decoder", "states",
        "alternating", "side_by_side", "doubled", "shared_attention", "encoder", "text_to_text",
    ] = "uniform"  # fmt: skip
    others_are: Literal["", "ssd", "selective", "conv"] = ""
    full_every: int = 0
    full_first: int = 0
    windows_are: Literal["sliding", "chunked"] = "sliding"
    multi_query: bool = False
    has_value_dim: bool = False
    has_global_heads: bool = False
    shares_queries: bool = False
    gates_attention: bool = False
    gates_heads: bool = False
    bias_fields: tuple[str, str] = ("attention_bias", "use_qkv_bias")
    optional_qk_norm: Literal["none", "head", "full"] = "none"
    sinks: Literal["none", "all", "sliding"] = "none"
    mlp_multiple: int | None = None
    rounds_mlp_width: bool = False
    mlp_width_field: str = ""
    activation_vectors: int = 0
    shared_width_field: str = ""
    experts_beside_mlp: bool = False
    gates_shared_experts: bool = False
    corrects_experts: bool = False
    biases_experts: bool = False
    pads_experts: bool = False
    per_layer_inputs: bool = False
    altup: bool = False
    embedding_norm: bool = False
    lm_head_bias: bool = False
    gates_streams: bool = False
    expands_latents: bool = False
    gates_experts: bool = False
    mlp_divisor: int = 1
    adaptive_norms: int = 0

    @property
    def encodes(self) -> bool:
        """Whether a prompt goes through an encoder, which reads it as a whole."""
        return self.layout in ("encoder", "encoder_decoder", "text_to_text")


_IN_LLAMA_CPP = LlamaCpp()
_WITHOUT_WINDOWS = LlamaCpp(reads_windows=False)
_WITH_DRAFTING = LlamaCpp(loads_drafting=True)

_LLAMA = Family()
_QWEN2 = Family(qkv_bias=True, o_bias=False, full_first=28)
_QWEN3 = Family(qk_norm="head")
_QWEN_MOE_GATE = replace(_QWEN3, gates_shared_experts=True)
_LLAMA4 = Family(
    full_every=4, windows_are="chunked", mlp_width_field="intermediate_size_mlp",
    shared_width_field="intermediate_size",
)  # fmt: skip
_INTERNLM = Family(bias_fields=("qkv_bias", "bias"))
_GEMMA3 = Family(
    qk_norm="head", norms=4, ties_by_default=True, default_head_dim=256, rope_caches=2, full_every=6,
    plain_windows=True, states_stretched_length=True,
)  # fmt: skip
_GEMMA3N = replace(_GEMMA3, full_every=0, per_layer_inputs=True, altup=True)
_GEMMA4 = Family(
    qk_norm="head", norms=4, ties_by_default=True, default_head_dim=256, rope_caches=2, plain_windows=True, fills_qkv=True,
    min_batched_tokens=2496, has_global_heads=True, experts_beside_mlp=True, per_layer_inputs=True, llama_cpp=_IN_LLAMA_CPP,
)  # fmt: skip  # 2496: printed by vLLM 0.25.1 for Gemma 4
_BERT = Family(
    layout="encoder", qkv_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True, rope_caches=0, positions=0, pools=True,
)  # fmt: skip
_ROBERTA = replace(_BERT, unused_positions=2)
_GTE = replace(_BERT, gated_mlp=True, rope_caches=1, positions=None, pools=False)
_MUSE_GLIMMER = Family(norms=4, gates_attention=True)
_STEP3 = Family(shares_queries=True)
_STATES = Family(layout="states", others_are="selective", rope_caches=0)

FAMILIES: Mapping[str, Family] = {
    "llama": replace(_LLAMA, llama_cpp=LlamaCpp(widens_70b=True)), "llava": _LLAMA, "llava_next": _LLAMA, "idefics3": _LLAMA, "smolvlm": _LLAMA, "mistral": replace(_LLAMA, llama_cpp=_WITHOUT_WINDOWS), "ministral3": _LLAMA, "mistral3": _LLAMA, "granite": _LLAMA,
    "smollm3": _LLAMA, "mixtral": replace(_LLAMA, llama_cpp=_WITHOUT_WINDOWS), "phi3": replace(_LLAMA, llama_cpp=_WITHOUT_WINDOWS), "nemotron-nas": Family(layout="blocks"), "llama4": _LLAMA4,
    "llama4_text": _LLAMA4, "seed_oss": Family(qkv_bias=True, o_bias=False), "kimi_audio": replace(_QWEN2, full_first=0), "mimo": replace(_QWEN2, full_first=0),
    "qwen2": replace(_QWEN2, llama_cpp=LlamaCpp(reads_windows=False, widens_70b=True)),
    "qwen2_moe": replace(_QWEN2, full_first=0, gates_shared_experts=True, llama_cpp=_WITHOUT_WINDOWS),
    "qwen2_vl": replace(_QWEN2, rope_stretch=4),
    "qwen2_5_vl": replace(_QWEN2, rope_stretch=4),
    "qwen2_5_omni": replace(_QWEN2, rope_stretch=4),
    "qwen3_omni_moe": Family(qk_norm="head", rope_stretch=4),
    "qwen3": replace(_QWEN3, full_first=28, llama_cpp=_WITHOUT_WINDOWS),
    "qwen3_moe": replace(_QWEN3, llama_cpp=_WITHOUT_WINDOWS),
    "qwen3_vl": Family(qk_norm="head", rope_stretch=4),
    "qwen3_vl_moe": Family(qk_norm="head", rope_stretch=4),
    "qwen3_next": replace(_QWEN_MOE_GATE, gates_attention=True, partial_rotary=0.25),
    "qwen3_5": Family(
        qk_norm="head", rope_stretch=4, gates_attention=True, partial_rotary=0.25, llama_cpp=_WITH_DRAFTING,
    ),
    "qwen3_5_moe": replace(
        _QWEN_MOE_GATE, rope_stretch=4, gates_attention=True, partial_rotary=0.25, llama_cpp=_WITH_DRAFTING,
    ),
    "gemma": Family(ties_by_default=True, default_head_dim=256),
    "gemma2": Family(norms=4, ties_by_default=True, default_head_dim=256, full_every=2),
    "gemma3": replace(_GEMMA3, llama_cpp=_IN_LLAMA_CPP), "gemma3_text": replace(_GEMMA3, llama_cpp=_IN_LLAMA_CPP), "gemma4": _GEMMA4, "gemma4_text": _GEMMA4,
    "gemma3n": _GEMMA3N, "gemma3n_text": _GEMMA3N,
    "deepseek_v4": Family(rope_caches=2, layout="compressed"),
    "olmo2": Family(qk_norm="full"), "olmo3": Family(qk_norm="full"),
    "exaone4": _QWEN3, "apertus": Family(qk_norm="head", gated_mlp=False, activation_vectors=2),
    "glm4_moe": Family(o_bias=False, optional_qk_norm="head", llama_cpp=_IN_LLAMA_CPP),
    "gpt_oss": Family(qkv_bias=True, o_bias=True, sinks="all", biases_experts=True, pads_experts=True, llama_cpp=LlamaCpp(experts="MXFP4")),
    "minimax_m2": Family(qk_norm="full"), "minimax_m3": Family(qk_norm="head"),
    "mimo_v2_flash": Family(rope_caches=2, has_value_dim=True, sinks="sliding"),
    "step3p7": Family(qk_norm="head", gates_heads=True),
    "deepseek_v2": replace(_LLAMA, llama_cpp=_IN_LLAMA_CPP), "deepseek_v3": replace(_LLAMA, llama_cpp=_IN_LLAMA_CPP), "deepseek_v32": _LLAMA, "kimi_k2": _LLAMA,
    "kimi_k25": _LLAMA, "glm4_moe_lite": _LLAMA, "glm_moe_dsa": _LLAMA,
    "kimi_linear": Family(), "kimi_k3": Family(), "param2moe": Family(qk_norm="head", corrects_experts=True),
    "dots3_note": Family(gates_heads=True, rope_caches=2, shared_width_field="shared_experts_intermediate_size"),
    "hy_v4": Family(sinks="all", gates_attention=True, gates_streams=True),
    "nemotron_h": Family(norms=1, gated_mlp=False, rope_caches=0, layout="pattern"),
    "granitemoehybrid": Family(
        ties_by_default=True, mlp_width_field="shared_intermediate_size",
        shared_width_field="shared_intermediate_size",
    ),
    "falcon": Family(
        qkv_bias=False, o_bias=False, gated_mlp=False, norms=1, norm_bias=True, ties_by_default=True,
        multi_query=True, mlp_multiple=4,
    ),
    "gptj": Family(
        qkv_bias=False, o_bias=False, mlp_bias=True, gated_mlp=False, norms=1, norm_bias=True,
        lm_head_bias=True, mlp_multiple=4,
    ),
    "gpt2": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True,
        ties_by_default=True, rope_caches=0, positions=0, mlp_multiple=4,
    ),
    "opt": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True,
        ties_by_default=True, rope_caches=0, positions=2,
    ),
    "gpt_neox": Family(qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True),
    "gpt_bigcode": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True,
        ties_by_default=True, rope_caches=0, positions=0, multi_query=True, mlp_multiple=4,
    ),
    "phi": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norms=1, norm_bias=True,
        lm_head_bias=True,
    ),
    "phimoe": Family(norm_bias=True), "stablelm": Family(o_bias=False, norm_bias=True),
    "cohere": Family(norms=1, ties_by_default=True, optional_qk_norm="full"), "cohere2": Family(norms=1, ties_by_default=True),
    "cohere2_moe": Family(norms=1, ties_by_default=True, mlp_width_field="prefix_dense_intermediate_size"),
    "glm": Family(o_bias=False), "glm4": Family(o_bias=False, norms=4),
    "olmo": Family(norms=0), "olmoe": Family(qk_norm="full"), "arcee": Family(gated_mlp=False),
    "whisper": Family(norm_bias=True, ties_by_default=True, rope_caches=0, layout="encoder_decoder"),
    "helium": _LLAMA, "granitemoe": _LLAMA, "laguna": Family(qk_norm="head", rope_caches=2, gates_heads=True, corrects_experts=True),
    "ernie4_5": Family(ties_by_default=True), "ernie4_5_moe": Family(ties_by_default=True, corrects_experts=True),
    "internlm2": _INTERNLM, "internlm3": _INTERNLM, "exaone": _LLAMA, "baichuan": _LLAMA, "minicpm": Family(ties_by_default=True),
    "nemotron": Family(gated_mlp=False, norm_bias=True), "dbrx": Family(config_parts=("attn_config", "ffn_config")), "bamba": Family(others_are="ssd"),
    "bloom": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True, ties_by_default=True,
        rope_caches=0, embedding_norm=True, mlp_multiple=4,
    ),
    "mpt": Family(
        qkv_bias=False, o_bias=False, gated_mlp=False, ties_by_default=True, rope_caches=0, mlp_multiple=4
    ),
    "dots1": _QWEN3, "hunyuan_v1_dense": _QWEN3, "hunyuan_v1_moe": _QWEN3, "granitemoeshared": Family(shared_width_field="shared_intermediate_size"),
    "lfm2": Family(
        qk_norm="head", ties_by_default=True, qkv_bias=False, o_bias=False, others_are="conv",
        rounds_mlp_width=True,
    ),
    "mamba": replace(_STATES, ties_by_default=True), "falcon_mamba": replace(_STATES, ties_by_default=True),
    "mamba2": replace(_STATES, others_are="ssd"), "jamba": Family(layout="alternating", others_are="selective", rope_caches=0),
    "falcon_h1": Family(layout="side_by_side", others_are="ssd"),
    "zamba2": Family(layout="shared_attention", others_are="ssd", ties_by_default=True, rope_caches=0),
    "bert": _BERT, "roberta": _ROBERTA, "xlm-roberta": replace(_ROBERTA, with_rotary="xlm-roberta-flash"), "camembert": _ROBERTA, "modernbert": Family(layout="encoder"),
    "mpnet": _ROBERTA, "deberta-v2": replace(_BERT, pools=False), "xlm-roberta-flash": replace(_ROBERTA, rope_caches=1, positions=None),
    "gte": _GTE, "new": _GTE, "nomic_bert": replace(_GTE, qkv_bias=False, mlp_bias=False),
    "t5": Family(layout="text_to_text", gated_mlp=False, ties_by_default=True, rope_caches=0),
    "bart": Family(
        layout="text_to_text", qkv_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True, ties_by_default=True,
        rope_caches=0, positions=2,
    ),
    "lfm2_moe": Family(
        qk_norm="head", ties_by_default=True, qkv_bias=False, o_bias=False, others_are="conv",
    ),
    "mellum": Family(qk_norm="head", rope_caches=2), "hyperclovax": Family(norms=4), "solar": _LLAMA, "bailing_moe": _LLAMA,
    "bailing_moe_v2": Family(qk_norm="head", corrects_experts=True), "deepseek": _LLAMA, "chatglm": Family(qkv_bias=True, o_bias=False),
    "muse_glimmer": _MUSE_GLIMMER, "muse_glimmer_text": _MUSE_GLIMMER, "aria": _LLAMA, "aria_text": _LLAMA,
    "vaultgemma": Family(ties_by_default=True, default_head_dim=256, full_every=2),
    "step3p5": Family(qk_norm="head", gates_heads=True), "paddleocr_vl": Family(ties_by_default=True),
    "step3_text": _STEP3, "step3_vl": _STEP3, "phi3_v": _LLAMA,
    "ernie4_5_vl_moe": Family(ties_by_default=True, corrects_experts=True),
    "glm4v": Family(qkv_bias=True, o_bias=False, norms=4, rope_stretch=4), "glm_ocr": Family(norms=4, rope_stretch=4),
    "glm4v_moe": Family(o_bias=False, optional_qk_norm="head", rope_stretch=4),
    "exaone4_5": _QWEN3, "exaone_moe": _QWEN3, "hy_v3": _QWEN3, "cwm": _LLAMA, "iquestcoder": _LLAMA, "llama_bidirec": _LLAMA,
    "afmoe": Family(qk_norm="head", norms=4, gates_attention=True, corrects_experts=True),
    "flex_olmo": Family(qk_norm="full"), "olmo_hybrid": Family(qk_norm="full"), "orion": Family(norm_bias=True),
    "jais2": Family(qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True), "axk1": _LLAMA,
    "granite_swa": Family(ties_by_default=True, sinks="all"), "minicpm3": Family(ties_by_default=True, expands_latents=True),
    "longcat_flash": Family(layout="doubled"), "voxtral_realtime": Family(ties_by_default=True, adaptive_norms=32),
    "molmo": Family(bias_fields=("qkv_bias", "qkv_bias"), o_bias=False, mlp_divisor=2),
    "openai_privacy_filter": Family(qkv_bias=True, o_bias=True, sinks="all", biases_experts=True),
    "clip": replace(_BERT, pools=False), "siglip": replace(_BERT, pools=False), "phi4mm": _LLAMA,
    "panguembedded": Family(bias_fields=("bias", "bias")), "moondream3": Family(
        norms=1, norm_bias=True, qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, gates_experts=True, lm_head_bias=True,
    ),
    "hunyuan_vl": _QWEN3, "molmo2": _QWEN3, "mistral4": _LLAMA, "emu3": _LLAMA, "teleflm": _LLAMA,
    "cosmos3_edge": Family(gated_mlp=False), "pangu_ultra_moe": Family(norms=4), "phi4-siglip": _LLAMA,
    "bailing_hybrid": Family(gates_heads=True), "keye": _QWEN3, "keyevl1_5": _QWEN3, "isaac": _QWEN3,
    "dots_ocr": Family(qkv_bias=True, o_bias=False), "minicpmv": _LLAMA, "minicpmo": _LLAMA,
    "starcoder2": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True, ties_by_default=True
    ),
}  # fmt: skip


def llama_cpp_of(model_type: str) -> LlamaCpp | None:
    """Return how llama.cpp computes models of a type; that of a text model alone may be the row of the whole."""
    family = FAMILIES.get(model_type) or FAMILIES.get(model_type.removesuffix("_text"))
    return None if family is None else family.llama_cpp


_LENGTHS = {
    1024: "gpt2 gpt_bigcode",
    2048: "llama llava granite olmo olmo2 olmo3 exaone4 deepseek_v2 granitemoe granitemoehybrid falcon gptj opt gpt_neox phi",
    4096: "phi3 deepseek_v3 nemotron_h stablelm olmoe arcee helium starcoder2",
    8192: "gemma gemma2 cohere cohere2",
    32768: "qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_moe gemma3n gemma3n_text smollm3",
    65536: "apertus",
    128000: "qwen3_vl qwen3_vl_moe",
    131072: "mistral mistral3 mixtral llama4 llama4_text gemma3 gemma3_text gemma4 gemma4_text glm glm4 glm4_moe gpt_oss "
    "phimoe laguna ernie4_5 ernie4_5_moe mimo_v2_flash",
    163840: "deepseek_v32",
    196608: "minimax_m2",
    202752: "glm4_moe_lite glm_moe_dsa",
    262144: "ministral3",
    524288: "seed_oss",
    1048576: "deepseek_v4 kimi_linear",
}  # fmt: skip
CLASS_LENGTHS: Mapping[str, int] = {
    name: length for length, names in _LENGTHS.items() for name in names.split()
}
"""`max_position_embeddings` of each config class, which counts where config.json has none (transformers 5.23.0); a table
by length, as few families have one of their own."""

UNCHECKED = frozenset(
    {"kimi_audio", "kimi_linear", "kimi_k3", "minicpmo", "minimax_m3", "param2moe", "qwen2_5_omni"}
)
"""Families whose parameter count could not be compared with anything published."""

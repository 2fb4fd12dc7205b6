"""Speech encoders before a text model: Whisper's with a projector, and Granite's Conformer. `audio.py` calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.planner.model.shapes import Shard, Weight

if TYPE_CHECKING:
    from exo_inference.planner.model.config_fields import ConfigFields


def part(name: str, rows: int, columns: int, copies: int = 1) -> Weight:
    """Return `copies` matrices that every rank has whole."""
    return Weight(f"audio_tower.{name}", "vision", rows, columns, copies, Shard.REPLICATED)


def transformer(audio: ConfigFields, size: int, *, biases: int = 4) -> list[Weight]:
    """Return the layers of a transformer: each has two norms, and `biases` of attention's four products have a bias."""
    count = audio.integer("encoder_layers", audio.integer("num_hidden_layers", 24))
    wide = audio.integer("encoder_ffn_dim", audio.integer("intermediate_size", 4 * size))
    return [
        part("attention", 4 * size, size, count),
        part("mlp", wide, size, 2 * count),
        part("vectors", biases * size + wide + size + 4 * size, 1, count),
    ]


def whisper(audio: ConfigFields, *, with_positions: bool = True) -> list[Weight]:
    """Return Whisper's encoder; positions that are computed are no weights."""
    size, bins = audio.integer("hidden_size"), audio.integer("num_mel_bins", 128)
    rows = audio.integer("max_source_positions", 1500) if with_positions else 0
    return [
        *transformer(audio, size, biases=3),  # keys have none
        part("conv", size, 3 * (bins + size) + 2),
        part("ln_post", 2 * size, 1),
        part("embed_positions", rows, size),
    ]


def with_one_layer(audio: ConfigFields, text: int) -> list[Weight]:
    """Qwen2-Audio: one projection."""
    return [*whisper(audio), part("projector", text, audio.integer("hidden_size") + 1)]


def with_two_layers(audio: ConfigFields, text: int) -> list[Weight]:
    """Audio Flamingo 3: two projections with biases."""
    size = audio.integer("hidden_size")
    return [*whisper(audio), part("linear_1", text, size + 1), part("linear_2", text, text + 1)]


def joined(audio: ConfigFields, text: int) -> list[Weight]:
    """Voxtral: four positions joined, two projections without biases."""
    size = audio.integer("hidden_size")
    return [*whisper(audio), part("linear_1", text, 4 * size), part("linear_2", text, text)]


def joined_normed(audio: ConfigFields, text: int) -> list[Weight]:
    """MOSS-Transcribe-Diarize: four positions joined, two projections with biases, and a norm."""
    size = audio.integer("hidden_size")
    return [
        *whisper(audio),
        part("linear_1", text, 4 * size + 1),
        part("linear_2", text, text + 1),
        part("norm", 2 * text, 1),
    ]


def rotary(audio: ConfigFields, text: int) -> list[Weight]:
    """GLM-ASR: rotary positions, four positions joined, two projections with biases."""
    size = audio.integer("hidden_size")
    return [
        *whisper(audio, with_positions=False),
        part("linear_1", 2 * text, 4 * size + 1),
        part("linear_2", text, 2 * text + 1),
    ]


def stacked(audio: ConfigFields, text: int) -> list[Weight]:
    """Ultravox: eight positions joined, a gated projection and norms (vLLM 0.32.0, ultravox.py)."""
    stack = audio.integer("stack_factor", 8) * audio.integer("hidden_size")
    inner = audio.integer("projector_width", 4096)
    return [
        *whisper(audio),
        part("linear_1", inner, stack),
        part("linear_2", text, inner // 2),
        part("norms", stack + inner // 2, 1),
    ]


def causal(audio: ConfigFields, text: int) -> list[Weight]:
    """Voxtral Realtime: gated layers with rotary positions, attention wider than they are, and Voxtral's projector."""
    size, wide = audio.integer("hidden_size"), audio.integer("intermediate_size")
    count, bins = audio.integer("num_hidden_layers"), audio.integer("num_mel_bins", 128)
    inner = audio.integer("num_attention_heads") * audio.integer("head_dim", 64)
    return [
        part("attention", 4 * inner, size, count),
        part("mlp", wide, size, 3 * count),
        part("vectors", 2 * inner + size + size + 2 * size, 1, count),  # keys have no bias
        part("conv", size, 3 * (bins + size) + 2),
        part("norm", size, 1),
        part("linear_1", text, 4 * size),
        part("linear_2", text, text),
    ]


def two_tokenizers(parameters: int, text: int) -> list[Weight]:
    """VibeVoice: convolutions for sound and for meaning, of so many parameters, and a projector behind each."""
    acoustic, semantic = 64, 128
    return [
        part("tokenizers", parameters, 1),
        part("linear_1", text, acoustic + 1 + semantic + 1),
        part("norms", 2 * text, 1),
        part("linear_2", text, text + 1, 2),
    ]


def conformer(audio: ConfigFields, queries: ConfigFields, text: int) -> list[Weight]:
    """Granite Speech: a Conformer with attention in blocks, and learned queries that attend to what it says."""
    size, count = audio.integer("hidden_dim", 1024), audio.integer("num_layers", 16)
    wide = size * audio.integer("feedforward_mult", 4)
    inner = size * audio.integer("conv_expansion_factor", 2)
    heads, dim = audio.integer("num_heads", 8), audio.integer("dim_head", 128)
    out, rows = audio.integer("output_dim", 256), 2 * audio.integer("max_pos_emb", 512) + 1
    return [
        part("ff", 2 * wide, size, 2 * count),
        part("attention", 4 * heads * dim, size, count),
        part("conv", 3 * inner, size, count),
        part("depth_conv", inner, audio.integer("conv_kernel_size", 15), count),
        part("rel_pos_emb", rows, dim, count),
        part("vectors", 2 * (3 * size + wide) + 3 * size + 3 * size + 4 * inner + 2 * size, 1, count),
        part("input_linear", size, audio.integer("input_dim", 160) + 1),
        part("out", out, 2 * size + 1),
        part("out_mid.bias", size, 1),
        *_queries(queries, audio.integer("num_queries", 3), text),
    ]  # fmt: skip


def _queries(queries: ConfigFields, number: int, text: int) -> list[Weight]:
    """Return BLIP-2's Q-Former: layers that attend to each other and to the encoder."""
    size, count = queries.integer("hidden_size", 1024), queries.integer("num_hidden_layers", 2)
    wide, seen = (
        queries.integer("intermediate_size", 4096),
        queries.integer("encoder_hidden_size", size),
    )
    return [
        part("qformer.attention", 4 * size, size, count),
        part("qformer.crossattention", 2 * size, size + seen, count),
        part("qformer.mlp", 2 * wide, size, count),
        part("qformer.vectors", 8 * size + wide + size + 6 * size, 1, count),
        part("query", number * size + 2 * size, 1),
        part("linear", text, size + 1),
    ]

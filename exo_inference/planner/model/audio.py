"""Audio encoders: their weights. `outer_weights.py` calls `build_audio`; Whisper is in `whisper.py`.

Those that end in a projector alone are in `towers/speech.py`. An encoder that is not known is sized as a plain
transformer of its config's sizes, which the caller marks as approximate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from exo_inference.planner.model.config_fields import ConfigFields
from exo_inference.planner.model.shapes import Weight
from exo_inference.planner.model.towers import speech
from exo_inference.planner.model.towers.speech import part as _weight
from exo_inference.planner.model.towers.speech import transformer as _blocks

_KEYS = ("audio_config", "sound_config")
_OWN_BUILDERS = frozenset({"gemma3n", "whisper"})
"""Model types whose audio encoder is sized with their image encoder, or is the model's own."""

_FIXED: Mapping[str, int] = {"gemma4": 304_824_608}
"""Parameters of encoders whose sizes no config names: Gemma 4 E2B and E4B, instantiated (transformers 5.23.0)."""

_WHISPERS = ("funaudiochat_audio_encoder", "kimi_audio_whisper", "qwen2_5_omni_audio_encoder")
_CONFORMERS = ("parakeet_encoder", "parakeet")

_BEHIND_PROJECTORS: Mapping[str, Callable[[ConfigFields, int], list[Weight]]] = {
    "qwen2_audio": speech.with_one_layer, "audioflamingo3": speech.with_two_layers, "voxtral": speech.joined,
    "glmasr": speech.rotary, "ultravox": speech.stacked, "minicpmo": speech.with_two_layers,
    "voxtral_realtime": speech.causal, "moss_transcribe_diarize": speech.joined_normed,
}  # fmt: skip
"""Model types with a Whisper encoder, or one like it, by the projector behind it."""

_TOKENIZERS: Mapping[str, int] = {"vibevoice_asr": 688309632}
"""Parameters of encoders that are convolutions, instantiated (transformers 5.23.0)."""

_COUNTED: Mapping[str, int] = {"fun_asr_nano": 233_741_920, "midashenglm": 666_100_000}
"""Parameters of encoders with their projectors: Fun-ASR-Nano's instantiated (transformers 5.23.0), Dasheng's 32 layers of
1,280 and two projections as vLLM 0.32.0 builds them (midashenglm.py)."""

_GRANITE_SPEECH = ("granite_speech", "granite_speech_plus")


def build_audio(fields: ConfigFields) -> tuple[list[Weight], bool]:
    """Return an audio encoder's weights, and whether it is a known one; nothing and True where there is none.

    Raises:
        FieldProblem: a size is missing.
    """
    if fields.model_type in _GRANITE_SPEECH:
        queries = ConfigFields(fields.mapping("projector_config"))
        encoder = ConfigFields(fields.mapping("encoder_config"))
        return speech.conformer(encoder, queries, fields.integer("hidden_size")), True
    counted = _COUNTED.get(fields.model_type)
    if counted is not None:
        return [_weight("encoder", counted, 1)], True
    convolutions = _TOKENIZERS.get(fields.model_type)
    if convolutions is not None:
        return speech.two_tokenizers(convolutions, fields.integer("hidden_size")), True
    found = (fields.outer.get(key) or fields.raw.get(key) for key in _KEYS)
    config = next((each for each in found if isinstance(each, Mapping)), None)
    if config is None or fields.model_type in _OWN_BUILDERS:
        return [], True
    text = fields.integer("hidden_size")
    fixed = _FIXED.get(fields.model_type)
    if fixed is not None:
        return [_weight("encoder", fixed, 1), _weight("embed_audio", text, 1536)], True
    audio = ConfigFields(config)
    build = _BEHIND_PROJECTORS.get(fields.model_type)
    if build is not None:
        outer = {"projector_width": fields.outer.get("hidden_size"), **config}
        return build(ConfigFields(outer), text), True
    build = _OWN.get(fields.model_type)
    if build is not None:
        return build(audio, text), True
    if audio.model_type in _WHISPERS:
        return _whisper(audio, text), True
    if audio.get("downsample_hidden_size") and audio.get("num_mel_bins"):
        return _qwen3(audio, text), True
    return _plain(audio, text), False


def _qwen3(audio: ConfigFields, text: int) -> list[Weight]:
    """Qwen3-ASR's: three convolutions of stride 2 over time and frequency, then a transformer."""
    size, channels = audio.integer("hidden_size"), audio.integer("downsample_hidden_size")
    bands = -(-audio.integer("num_mel_bins") // 8)
    out = audio.integer("output_dim", text)
    return [
        *_blocks(audio, size),
        _weight("conv2d", channels, 9 * (2 * channels + 1) + 3),
        _weight("conv_out", size, channels * bands),
        _weight("ln_post", 2 * size, 1),
        _weight("proj1", size, size + 1),
        _weight("proj2", out, size + 1),
    ]


def _dots3(audio: ConfigFields, text: int) -> list[Weight]:
    """Dots3's: three convolutions as in Qwen3-ASR, gated layers with norms that only scale, and an adapter."""
    size, wide = audio.integer("hidden_size"), audio.integer("intermediate_size")
    count, channels = audio.integer("num_hidden_layers"), audio.integer("downsample_hidden_size")
    bands = -(-audio.integer("num_mel_bins") // 8)
    return [
        _weight("attention", 4 * size, size, count),
        _weight("mlp", wide, size, 3 * count),
        _weight("vectors", 3 * size + 2 * wide + size + 2 * size, 1, count),
        _weight("conv_stem", channels, 9 * (2 * channels + 1) + 3),
        _weight("conv_out", size, channels * bands),
        _weight("norms", 3 * size, 1),
        _weight("adapter.fc1", text, size + 1),
        _weight("adapter.fc2", text, text + 1),
    ]


def _whisper(audio: ConfigFields, text: int) -> list[Weight]:
    """Whisper's encoder, and before the text model what Fun-Audio-Chat, Kimi-Audio or Qwen2.5-Omni adds (vLLM 0.32.0)."""
    size = audio.integer("d_model")
    if audio.model_type == "kimi_audio_whisper":
        joined = audio.integer("adaptor_input_dim", 4 * size)
        return [
            *speech.whisper(audio),
            _weight("vq_adaptor.0", text, joined + 1),
            _weight("vq_adaptor.3", text, text + 3),
        ]
    joint = [
        *speech.whisper(audio, with_positions=False),
        _weight("proj", text, size + 1),
        _weight("audio_bos_eos_token", 2, text),
    ]
    if audio.model_type == "qwen2_5_omni_audio_encoder":
        return joint
    return [
        *joint,
        _weight("embed_tokens", audio.integer("codebook_size"), text),
        _weight("output_matching", text, text, 2),
    ]


def _plain(audio: ConfigFields, text: int) -> list[Weight]:
    """A transformer with a projector; a Conformer has a second feed-forward, positions and a convolution."""
    size = audio.integer("hidden_size", 1024)
    weights = _blocks(audio, size)
    if audio.model_type in _CONFORMERS:
        attention, mlp, _ = weights
        weights += [
            _weight("mlp2", mlp.out_features, size, mlp.copies),
            _weight("conv", 4 * size, size, attention.copies),
        ]
    return [*weights, _weight("projector", text, size), _weight("projector2", text, text)]


_OWN: Mapping[str, Callable[[ConfigFields, int], list[Weight]]] = {"dots3_note": _dots3}
"""Model types with an encoder like no other's."""

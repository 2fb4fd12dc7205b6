"""BERT, RoBERTa and XLM-RoBERTa: the encoders of BGE, E5, GTE, MiniLM and most cross-encoders."""

from __future__ import annotations

from exo_engine.models.config_file import ConfigReader
from exo_engine.models.pooling.spec import EncoderActivation, EncoderSpec, HeadSpec

_ACTIVATIONS: dict[str, EncoderActivation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_CLASSIFIER = "ForSequenceClassification"
_DEFAULT_PADDING = 1


def spec_from_config(reader: ConfigReader, architecture: str) -> EncoderSpec:
    """Translate the configuration of one of these architectures."""
    is_roberta = not architecture.startswith("Bert")
    hidden_size, num_heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    if hidden_size % num_heads:
        raise reader.unusable("hidden_size", hidden_size, f"a multiple of {num_heads} heads")
    activation = reader.text("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise reader.unusable("hidden_act", activation, f"one of {', '.join(_ACTIVATIONS)}")
    if (kind := reader.text("position_embedding_type", "absolute")) != "absolute":
        raise reader.unusable("position_embedding_type", kind, "absolute")
    padding = reader.integer("pad_token_id", _DEFAULT_PADDING, at_least=0)
    first = padding + 1 if is_roberta else 0
    return EncoderSpec(
        architecture=architecture,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=reader.integer("num_hidden_layers"),
        num_heads=num_heads,
        norm_eps=reader.number("layer_norm_eps", 1e-12),
        num_positions=reader.integer("max_position_embeddings", 512, at_least=first + 1),
        first_position=first,
        num_types=reader.integer("type_vocab_size", 2),
        activation=_ACTIVATIONS[activation],
        prefix=("roberta." if is_roberta else "bert.")
        if architecture.endswith(_CLASSIFIER)
        else "",
    )


def head_of(spec: EncoderSpec) -> HeadSpec:
    """Return the head of a classifier with one label."""
    if spec.prefix == "bert.":
        return HeadSpec("classifier", inner="bert.pooler.dense")
    return HeadSpec("classifier.out_proj", inner="classifier.dense")

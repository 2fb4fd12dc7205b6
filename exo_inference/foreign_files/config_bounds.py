"""Refuses a config.json whose counts no model can have, before anything is computed from them.

Only fields that every reader uses as a size are looked at, at every level; whether the rest makes
a model is the planner's and the engine's to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from exo_inference.foreign_files.errors import ForeignFileError, shown

_MOST: Mapping[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 4096),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_nextn_predict_layers"), 4096),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "n_heads"), 65_536),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 1_000_000),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "head_dim"), 10_000_000),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "ffn_dim"), 100_000_000),
    "vocab_size": 10_000_000,
    "max_position_embeddings": 10**9,
}


def check_counts(config: Mapping[str, Any], name: str) -> None:
    """Check the sizes of a configuration.

    Raises:
        ForeignFileError: one of them is not a count, or beyond all models.
    """
    for path, key, value in _leaves(config):
        most = _MOST.get(key)
        if most is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not 0 <= value <= most or value != int(value):
            raise ForeignFileError(
                f"{path} in {shown(name)} is {shown(value, 48)}, expected a whole number from 0 to "
                f"{most}",
                hint="Download the file again, or choose another model.",
            )


def _leaves(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    waiting: list[tuple[str, Mapping[str, Any]]] = [("", config)]
    while waiting:
        prefix, level = waiting.pop()
        for key, value in level.items():
            path = f"{prefix}{shown(key, 64)}"
            if isinstance(value, dict):
                waiting.append((f"{path[:128]}.", value))
            else:
                yield path, key, value

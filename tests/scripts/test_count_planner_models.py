"""Counts of bundled models: confirmed by a class of the model's type, or not marked."""

from __future__ import annotations

import json
from typing import Any

from scripts.count_planner_models import TARGET, checked, counts

SMALL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_config_is_counted_by_its_class() -> None:
    attention, feed_forward = 64 * 64 * 2 + 2 * 64 * 32, 3 * 64 * 128
    expected = 2 * 100 * 64 + 2 * (attention + feed_forward + 2 * 64) + 64
    assert expected in set(counts(SMALL))
    assert expected not in set(counts(SMALL | {"num_hidden_layers": 3}))


def test_a_type_without_a_class_confirms_nothing() -> None:
    assert list(counts({"model_type": "no such model"})) == []


def test_an_entry_is_marked_only_where_a_class_has_its_count() -> None:
    entries = json.loads(TARGET.read_text(encoding="utf-8"))
    entry = entries["sentence-transformers/all-MiniLM-L6-v2"]
    plain = {**entry, "is_checked": False, "source": "somewhere (not counted by instantiating it)"}
    found = checked("sentence-transformers/all-MiniLM-L6-v2", plain)
    assert found is not None
    assert found["is_checked"]
    assert "not counted" not in found["source"]
    other = {**plain, "config": plain["config"] | {"num_hidden_layers": 7}}
    assert checked("sentence-transformers/all-MiniLM-L6-v2", other) is None

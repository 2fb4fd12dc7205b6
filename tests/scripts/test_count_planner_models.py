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


def test_an_output_table_of_its_own_counts_where_the_class_ties_it_all_the_same() -> None:
    small = {
        "model_type": "t5", "d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_heads": 4,
        "vocab_size": 100, "feed_forward_proj": "gated-gelu",
    }  # fmt: skip
    tied, apart = (
        max(counts({**small, "tie_word_embeddings": is_tied})) for is_tied in (True, False)
    )
    assert apart - tied == 100 * 64


def test_of_a_model_that_also_speaks_what_is_served_is_counted() -> None:
    entry = json.loads(TARGET.read_text(encoding="utf-8"))["Qwen/Qwen2.5-Omni-7B"]
    assert entry["is_checked"]
    assert entry["num_parameters"] in set(counts(entry["config"]))

"""The most text a token can stand for is never understated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exo_engine.tokenizer import Tokenizer
from exo_engine.tokenizer.size_bound import most_bytes_per_token
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=st.text(min_size=1, max_size=60))
def test_no_text_has_fewer_tokens_than_the_bound_says(tokenizer: Tokenizer, text: str) -> None:
    most = tokenizer.most_bytes_per_token
    assert most is not None
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert len(text.encode()) <= most * len(tokens)


@given(text=st.text(max_size=200), special=st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batch_gives_the_same_tokens(tokenizer: Tokenizer, text: str, special: bool) -> None:
    together = tokenizer.encode_all([text, "x"], add_special_tokens=special)
    assert together[0] == tokenizer.encode(text, add_special_tokens=special)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "same"),
        ({"normalizer": {"type": "NFC"}}, "more"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}}, "more"),
        ({"normalizer": {"type": "Strip"}}, None),
        (
            {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
            None,
        ),
        (
            {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": ""}},
            None,
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, None),
        (
            {
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [
                        {"type": "Split", "behavior": "Removed"},
                        {"type": "ByteLevel"},
                    ],
                }
            },
            None,
        ),
        ({"pre_tokenizer": None}, None),
        ({"added_tokens": [{"content": "<x>", "rstrip": True}]}, None),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0}}}, None),
    ],
)
def test_bound_is_given_only_where_nothing_is_thrown_away(
    byte_level_dir: Path, change: dict[str, Any], expected: str | None
) -> None:
    state = json.loads((byte_level_dir / "tokenizer.json").read_text())
    plain = most_bytes_per_token(state)
    found = most_bytes_per_token({**state, **change})
    assert plain is not None
    if expected is None:
        assert found is None
    elif expected == "same":
        assert found == plain
    else:
        assert found is not None
        assert found > plain

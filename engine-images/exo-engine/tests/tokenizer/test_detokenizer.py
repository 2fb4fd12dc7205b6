"""Streaming detokenization equals decoding everything at once."""

from __future__ import annotations

import pytest
from exo_engine.tokenizer import Tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def stream(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    return [*(detokenizer.feed(each) for each in ids), detokenizer.flush()]


@EXAMPLES
@given(text=st.text(max_size=60))
def test_pieces_of_real_text_join_to_that_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = stream(tokenizer, ids, skip=False)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)
    if "\ufffd" not in text and tokenizer.token_id("<unk>") not in ids:
        assert not any("\ufffd" in piece for piece in pieces)


@EXAMPLES
@given(data=st.data(), skip=st.booleans())
def test_any_tokens_even_malformed_ones_join_to_the_full_decode(
    tokenizer: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary_size - 1), max_size=40))
    joined = "".join(stream(tokenizer, ids, skip=skip))
    assert joined == tokenizer.decode(ids, skip_special_tokens=skip)


def test_half_a_character_is_held_until_it_is_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🙂b", add_special_tokens=False)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == "a🙂b"
    assert all(piece.isprintable() and "\ufffd" not in piece for piece in pieces)


def test_ascii_text_is_shown_token_by_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("The quick brown fox", add_special_tokens=False)
    pieces = stream(tokenizer, ids)
    assert pieces[-1] == ""
    assert sum(1 for piece in pieces if piece) >= len(ids) - 1


def test_endless_raw_bytes_are_shown_in_time(byte_fallback_dir) -> None:
    tokenizer = Tokenizer(byte_fallback_dir)
    smile = [tokenizer.token_id(f"<0x{byte:02X}>") for byte in "🙂".encode()]
    pieces = stream(tokenizer, smile * 100)
    assert "".join(pieces) == "🙂" * 100
    assert sum(1 for piece in pieces if piece) >= 5


def test_endless_malformed_bytes_do_not_stall(byte_fallback_dir) -> None:
    tokenizer = Tokenizer(byte_fallback_dir)
    bad = tokenizer.token_id("<0xFF>")
    assert sum(1 for piece in stream(tokenizer, [bad] * 500) if piece) >= 5


@pytest.mark.parametrize("token", ["<|im_end|>", "</s>"])
def test_special_tokens_are_left_out_unless_asked_for(tokenizer: Tokenizer, token: str) -> None:
    special = tokenizer.token_id(token)
    assert special is not None
    ids = [*tokenizer.encode("quick", add_special_tokens=False), special]
    assert "".join(stream(tokenizer, ids)) == "quick"
    assert "".join(stream(tokenizer, ids, skip=False)).endswith(token)

"""Large texts are refused early or tokenized aside, and never hold up the event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from exo_engine.server.api_errors import ApiError
from exo_engine.server.fields import parse_object
from exo_engine.server.prompts import encoding
from exo_engine.server.prompts.encoding import Encoder
from exo_engine.tokenizer import Tokenizer


class Watched(Tokenizer):
    """Counts what it is given."""

    num_characters = 0

    def encode_all(self, texts: list[str], *, add_special_tokens: bool) -> list[list[int]]:  # type: ignore[override]
        self.num_characters += sum(map(len, texts))
        return super().encode_all(texts, add_special_tokens=add_special_tokens)


@pytest.fixture
def tokenizer(model_dir: Path) -> Watched:
    return Watched(model_dir)


async def encode(tokenizer: Tokenizer, max_model_len: int, *texts: str) -> list[list[int]]:
    encoder = Encoder(tokenizer, max_model_len, asyncio.Semaphore(1))
    return await encoder.encode(texts, add_special_tokens=True, param="prompt")


async def refusal(tokenizer: Tokenizer, max_model_len: int, text: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await encode(tokenizer, max_model_len, text)
    assert caught.value.status == 400
    assert caught.value.param == "prompt"
    return caught.value


async def test_text_that_cannot_fit_is_refused_untokenized(tokenizer: Watched) -> None:
    error = await refusal(tokenizer, 100, "x" * 30_000_000)
    assert tokenizer.num_characters == 0
    assert error.code == "context_length_exceeded"
    assert "30000000 bytes" in error.message
    assert "100 tokens" in error.message


async def test_without_a_bound_a_part_of_the_text_is_enough(tokenizer: Watched) -> None:
    tokenizer.most_bytes_per_token = None
    error = await refusal(tokenizer, 100, "the quick fox " * 100_000)
    assert tokenizer.num_characters <= 20_000
    assert error.code == "context_length_exceeded"


async def test_half_of_a_surrogate_pair_is_no_text(tokenizer: Watched) -> None:
    error = await refusal(tokenizer, 100, "a\ud800")
    assert "U+D800" in error.message


async def test_large_texts_have_the_tokens_they_have_by_themselves(
    tokenizer: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "_SLICE_CHARACTERS", 100_000)
    texts = ["the quick fox " * 4000, "", "über " * 21_000, "end"]
    found = await encode(tokenizer, 10**6, *texts)
    assert found == [tokenizer.encode(text, add_special_tokens=True) for text in texts]


async def test_event_loop_goes_on_while_a_large_text_is_tokenized(tokenizer: Watched) -> None:
    work = asyncio.create_task(encode(tokenizer, 10**6, "the quick brown fox " * 50_000))
    num_turns = 0
    while not work.done():
        await asyncio.sleep(0.001)
        num_turns += 1
    assert len(work.result()[0]) > 100_000
    assert num_turns > 10


def test_body_of_millions_of_lists_is_refused_unparsed() -> None:
    with pytest.raises(ApiError, match="brackets and braces") as caught:
        parse_object(b'{"prompt": [' + b"[]," * 1_000_001 + b"[]]}")
    assert caught.value.code == "request_too_large"

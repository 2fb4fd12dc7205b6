"""Tokenize what clients send without letting one of them stop all the others.

Texts are tokenized in processes of their own; by a tokenizer that comes with this project, small ones
at once and large ones in a thread that does not hold the interpreter. Large ones wait for their turn,
one request at a time. A text that cannot fit into the model is refused as early as that is sure: by its
size, or once a part of it has far more tokens than the model takes. `Service` makes one `Encoder` per
use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from exo_engine.server.api_errors import ApiError, bad_request
from exo_engine.server.pools.tokenizer_pool import TextRefused, TokenizerPool
from exo_engine.server.prompts.truncation import Truncation
from exo_engine.tokenizer import Tokenizer

_SMALL_CHARACTERS = 20_000
_SLICE_CHARACTERS = 1_000_000
"""Texts are given to the tokenizer in groups of about this size; it needs 100 times as much."""
_FIRST_PART_CHARACTERS_PER_TOKEN = 16
"""Far more than ordinary text has, so that a text which fits is nearly always tokenized once."""
_CERTAIN_EXCESS = 2
"""How text goes on changes how the end of a part of it is split, but never half of the part."""


class Encoder:
    """A tokenizer with the length of the model it is for."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_model_len: int,
        turn: asyncio.Semaphore,
        pool: TokenizerPool | None = None,
    ) -> None:
        """Prepare.

        Args:
            tokenizer: of the model.
            max_model_len: most tokens of a sequence.
            turn: held while a large text is tokenized.
            pool: where it is tokenized; None for a tokenizer that is no stranger's.
        """
        self._tokenizer = tokenizer
        self._pool = pool
        self._max_model_len = max_model_len
        self._turn = turn

    async def encode(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool,
        param: str,
        truncation: Truncation | None = None,
    ) -> list[list[int]]:
        """Return the token ids of each text, cut where that was asked for.

        Raises:
            ApiError: 400 if one of them is no text, too long for the model, or too much for its
                tokenizer.
        """
        for text in texts:
            self._check(text, param, truncation)
        tokens = await self._encode(texts, add_special_tokens, param, truncation is not None)
        if truncation is None:
            return tokens
        around = self._tokenizer.encode("", add_special_tokens=add_special_tokens)
        return [truncation.cut(each, around) for each in tokens]

    async def _encode(
        self, texts: Sequence[str], add_special_tokens: bool, param: str, is_cut: bool
    ) -> list[list[int]]:
        try:
            if sum(len(text) for text in texts) < _SMALL_CHARACTERS:
                return await self._encode_small(texts, add_special_tokens)
            async with self._turn:
                tokens: list[list[int]] = []
                for group in _groups(texts):
                    for text in () if is_cut else group:
                        await self._check_parts(text, param)
                    tokens += await self._encode_large(group, add_special_tokens)
            return tokens
        except TextRefused as exc:
            raise bad_request(exc.message, param, "tokenizer_error") from exc

    async def _encode_small(self, texts: Sequence[str], is_special_added: bool) -> list[list[int]]:
        if self._pool is not None:
            return await self._pool.encode_all(texts, add_special_tokens=is_special_added)
        return [self._tokenizer.encode(each, add_special_tokens=is_special_added) for each in texts]

    async def _encode_large(self, texts: Sequence[str], is_special_added: bool) -> list[list[int]]:
        if self._pool is not None:
            return await self._pool.encode_all(texts, add_special_tokens=is_special_added)
        return await asyncio.to_thread(
            self._tokenizer.encode_all, texts, add_special_tokens=is_special_added
        )

    def _check(self, text: str, param: str, truncation: Truncation | None) -> None:
        """Refuse what is no text, and what is too long in any case."""
        if truncation is not None and len(text) > _SLICE_CHARACTERS:
            raise bad_request(
                f"a text to be truncated may have {_SLICE_CHARACTERS} characters, this one has "
                f"{len(text)}",
                param,
            )
        try:
            num_bytes = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError as exc:
            raise bad_request(
                f"the text holds half of a surrogate pair (U+{ord(text[exc.start]):04X}), which is "
                "no character",
                param,
            ) from exc
        most = self._tokenizer.most_bytes_per_token
        if truncation is None and most is not None and num_bytes > most * self._max_model_len:
            raise self._too_long(
                f"the text has {num_bytes} bytes, which are at least "
                f"{int(num_bytes // most) + 1} tokens",
                param,
            )

    async def _check_parts(self, text: str, param: str) -> None:
        """Refuse a text of which a part already has far more tokens than the model takes."""
        length = max(_FIRST_PART_CHARACTERS_PER_TOKEN * self._max_model_len, _SMALL_CHARACTERS)
        while length < len(text):
            (part,) = await self._encode_large([text[:length]], False)
            if len(part) > _CERTAIN_EXCESS * self._max_model_len:
                raise self._too_long(
                    f"the first {length} of the text's {len(text)} characters alone have "
                    f"{len(part)}",
                    param,
                )
            length *= 2

    def _too_long(self, found: str, param: str) -> ApiError:
        return bad_request(
            f"This model's maximum context length is {self._max_model_len} tokens, but {found}. "
            "Shorten the prompt.",
            param,
            "context_length_exceeded",
        )


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """Split texts into groups of a bounded size, in order."""
    group: list[str] = []
    size = 0
    for text in texts:
        if group and size + len(text) > _SLICE_CHARACTERS:
            yield group
            group, size = [], 0
        group.append(text)
        size += len(text)
    if group:
        yield group

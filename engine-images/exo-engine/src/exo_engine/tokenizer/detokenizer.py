"""Turn tokens that arrive one by one into text that only ever grows by whole characters.

The pieces joined are exactly what decoding all tokens at once gives. Two ways, chosen by the
tokenizer's decoder:

* byte-level vocabularies (GPT-2 style: Llama 3, Qwen, ...): each token is a byte string, and an
  incremental UTF-8 decoder holds back at most one unfinished character;
* everything else (SentencePiece style with byte fallback: Llama 2, Mistral, ...): a small window of
  tokens is decoded with and without the new one, and the difference is shown once it is final.
  Byte-fallback tokens are held until their run ends, because one bad byte changes the whole run.
"""

from __future__ import annotations

import codecs
from typing import Protocol

_REPLACEMENT = "\ufffd"
_MAX_HELD_BYTE_TOKENS = 64
"""Longest run of byte-fallback tokens that is held back; longer ones are shown as they stand."""


class Detokenizer(Protocol):
    """Text of one answer, growing."""

    def feed(self, token_id: int) -> str:
        """Add one token; return the text that became final, often one word, possibly nothing."""

    def flush(self) -> str:
        """Return what was held back, when no more tokens will come."""


class TokenSource(Protocol):
    """What a detokenizer asks of a tokenizer."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Decode all tokens at once."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for, by itself."""

    def is_special(self, token_id: int) -> bool:
        """Say whether a token is left out of text shown to people."""

    def is_byte_fallback(self, token_id: int) -> bool:
        """Say whether a token stands for one raw byte of a character outside the vocabulary."""


class ByteLevelDetokenizer:
    """For vocabularies in which every token is a byte string."""

    def __init__(self, source: TokenSource, *, skip_special_tokens: bool) -> None:
        self._source = source
        self._skips_special = skip_special_tokens
        # Replaces malformed bytes by the Unicode standard's "maximal subparts", as tokenizers does.
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """Add one token; return the text that became final."""
        if self._skips_special and self._source.is_special(token_id):
            return ""
        return self._utf8.decode(self._source.token_bytes(token_id))

    def flush(self) -> str:
        """Return what was held back."""
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """For any other decoder: decode a window of tokens again and show how it grew.

    ::

        tokens   [ ... shown ... | anchor ... | pending ... ]
                                 ^_begin      ^_num_shown    the window is tokens[_begin:]
    """

    def __init__(self, source: TokenSource, *, skip_special_tokens: bool) -> None:
        self._source = source
        self._skips_special = skip_special_tokens
        self._tokens: list[int] = []
        self._begin = 0
        self._num_shown = 0
        self._num_held_bytes = 0

    def feed(self, token_id: int) -> str:
        """Add one token; return the text that became final."""
        if self._skips_special and self._source.is_special(token_id):
            return ""
        self._tokens.append(token_id)
        if not self._source.is_byte_fallback(token_id):
            self._num_held_bytes = 0
        else:
            self._num_held_bytes += 1
            if self._num_held_bytes < _MAX_HELD_BYTE_TOKENS:
                return ""
        return self._grow()

    def flush(self) -> str:
        """Return what was held back."""
        return self._grow()

    def _grow(self) -> str:
        before = self._decode(self._tokens[self._begin : self._num_shown])
        after = self._decode(self._tokens[self._begin :])
        # An unfinished character at the end of a long run gets the three tokens it may still need.
        is_unfinished = _MAX_HELD_BYTE_TOKENS <= self._num_held_bytes < _MAX_HELD_BYTE_TOKENS + 4
        if len(after) <= len(before) or (is_unfinished and after.endswith(_REPLACEMENT)):
            return ""
        self._begin = self._num_shown
        self._num_shown = len(self._tokens)
        self._num_held_bytes = 0
        return after[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._source.decode(token_ids, skip_special_tokens=False) if token_ids else ""

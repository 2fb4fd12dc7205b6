"""What a grammar must know of a model's tokens: the bytes that each one stands for.

The API process makes it from the tokenizer and sends it to the engine's core with the first grammar;
the core itself knows token ids only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exo_engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, as many as the model has."""

    tokens: tuple[bytes, ...]
    """Nothing for an id that the tokenizer does not know; a grammar never allows such a token."""
    special_ids: tuple[int, ...]
    """Allowed only where a grammar names them, and to end an answer."""
    end_ids: tuple[int, ...]
    """Those that end an answer, allowed where the grammar accepts."""

    def pack(self) -> list[Any]:
        """Return plain values for a frame."""
        return [self.tokens, self.special_ids, self.end_ids]

    @classmethod
    def unpack(cls, values: list[Any]) -> Vocabulary:
        """Invert `pack`."""
        tokens, special_ids, end_ids = values
        return cls(tuple(tokens), tuple(special_ids), tuple(end_ids))


def vocabulary_of(tokenizer: Tokenizer, size: int, end_ids: Iterable[int] = ()) -> Vocabulary:
    """Return what a tokenizer says of a model's tokens.

    Args:
        tokenizer: of the model.
        size: token ids of the model are below.
        end_ids: tokens that end an answer beside those that the tokenizer's files name.
    """
    known = range(min(size, tokenizer.vocabulary_size))
    ends = {each for each in (*tokenizer.eos_token_ids, *end_ids) if 0 <= each < size}
    return Vocabulary(
        tokens=tuple(map(tokenizer.token_bytes, known)) + (b"",) * (size - len(known)),
        special_ids=tuple(each for each in known if tokenizer.is_special(each)),
        end_ids=tuple(sorted(ends)),
    )

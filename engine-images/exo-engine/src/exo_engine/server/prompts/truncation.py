"""`truncate_prompt_tokens` and `truncation_side`: prompts cut to a number of tokens, as vLLM does it.

A prompt that came as text keeps what the tokenizer puts around it (BOS or the like), so that tokens are cut
from the text alone; a prompt that came as tokens is cut as it is, and so is a rendered conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from exo_engine.server.api_errors import bad_request
from exo_engine.server.fields import Fields

_ALL = -1
"""vLLM's word for: as many as there is room for."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """To how many tokens a prompt is cut, and which of them stay."""

    num_tokens: int
    keeps_end: bool

    def cut(self, tokens: list[int], around: Sequence[int] = ()) -> list[int]:
        """Return what is left of a prompt.

        Args:
            tokens: of the prompt.
            around: the tokens of an empty text, which stay: those before the text and those behind it.
        """
        if len(tokens) <= self.num_tokens:
            return tokens
        pairs = zip(tokens, around, strict=False)
        num_before = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        num_behind = len(around) - num_before
        room = self.num_tokens - len(around)
        if room <= 0:
            return self._part(tokens, self.num_tokens)
        end = len(tokens) - num_behind
        return [*tokens[:num_before], *self._part(tokens[num_before:end], room), *tokens[end:]]

    def _part(self, tokens: list[int], number: int) -> list[int]:
        return tokens[len(tokens) - number :] if self.keeps_end else tokens[:number]


def read_truncation(
    fields: Fields, *, max_model_len: int, max_tokens: int | None
) -> Truncation | None:
    """Read the two fields; None where nothing is to be cut.

    Args:
        fields: the request.
        max_model_len: most tokens of prompt and answer.
        max_tokens: most tokens of the answer, if the request says so.

    Raises:
        ApiError: a value is wrong, or leaves no room for the answer.
    """
    asked = fields.integer("truncate_prompt_tokens", minimum=_ALL)
    side = fields.values.get("truncation_side")
    if side not in (None, "left", "right"):
        raise fields.wrong("truncation_side", "'left' or 'right'")
    if asked is None:
        return None
    room = max_model_len - (max_tokens or 1)
    if asked > room:
        raise bad_request(
            f"truncate_prompt_tokens is {asked}, but the model takes {max_model_len} tokens, "
            f"{max_tokens or 1} of them for the answer: {max(room, 0)} is the most",
            "truncate_prompt_tokens",
        )
    return Truncation(max(room, 0) if asked == _ALL else asked, keeps_end=side != "right")

"""`suffix`: text that comes behind what the model is to write, for models that were taught to fill gaps.

Such a model has three tokens of its own: before the text in front of the gap, before the text behind it, and
where it begins to write. There is no field in a checkpoint that says so; the tokens' names do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from exo_engine.server.api_errors import ApiError, bad_request, not_supported
from exo_engine.server.fields import Fields
from exo_engine.tokenizer import Tokenizer

_MARKS: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder, DeepSeek-V2 and V3
)
"""Of the families that write the gap's front first; from their models' pages."""


def find_marks(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    """Return the ids of a tokenizer's three tokens, if it has them."""
    for names in _MARKS:
        first, second, third = map(tokenizer.token_id, names)
        if first is not None and second is not None and third is not None:
            return first, second, third
    return None


def read_suffix(fields: Fields, tokenizer: Tokenizer) -> str | None:
    """Read the field; an empty text asks for nothing.

    Raises:
        ApiError: it is no text, this model cannot fill gaps, or another field does not go with it.
    """
    suffix = fields.string("suffix")
    if not suffix:
        return None
    if find_marks(tokenizer) is None:
        raise not_supported("suffix", "suffix with a model whose tokenizer has no tokens for it")
    for other in ("echo", "truncate_prompt_tokens"):
        if fields.has(other) and fields.values[other] is not False:
            raise bad_request(f"{other} does not go with suffix", other)
    return suffix


def fill_in(prompt: Sequence[int], suffix: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a prompt with a gap, without BOS."""
    marks = find_marks(tokenizer)
    assert marks is not None, "read_suffix has found them"
    return [marks[0], *prompt, marks[1], *suffix, marks[2]]


def no_text(fields: Fields) -> ApiError:
    """Return the error for a prompt that came as tokens."""
    return fields.wrong("prompt", "a string or a list of strings where suffix is given")

"""Bounds on what tokens are written as: decoding runs in the API process, for every token of an answer.

Encoding runs elsewhere, because patterns and replacements can cost anything there. A decoder is held
against bounds instead, which every model in use keeps. Called by `Tokenizer` once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from exo_engine.errors import ModelUnusable
from exo_engine.foreign_files import shown

MAX_TOKEN_CHARACTERS: Final = 16_384
"""Of one token; the longest in use has about 1,000."""
MAX_DECODER_STEPS: Final = 16
MAX_DECODER_GROWTH: Final = 64.0
"""How many times longer the steps of a decoder may make a text; those in use: by 1."""
_OTHER: Final = "Choose another model, or one of another publisher."


def check_texts(state: Mapping[str, Any], path: Path) -> None:
    """Hold tokens and decoder against the bounds.

    Args:
        state: the contents of tokenizer.json.
        path: of that, for messages.

    Raises:
        ModelUnusable: one is exceeded.
    """
    longest = max((len(each) for each in _tokens(state)), default=0)
    if longest > MAX_TOKEN_CHARACTERS:
        raise ModelUnusable(
            f"{path} has a token of {longest} characters, expected at most {MAX_TOKEN_CHARACTERS}",
            hint=_OTHER,
        )
    steps = list(_steps(state.get("decoder")))
    if len(steps) > MAX_DECODER_STEPS:
        raise ModelUnusable(
            f"{path} has a decoder of {len(steps)} steps, expected at most {MAX_DECODER_STEPS}",
            hint=_OTHER,
        )
    growth = 1.0
    for step in steps:
        growth *= _growth(step, path)
    if growth > MAX_DECODER_GROWTH:
        raise ModelUnusable(
            f"{path} has a decoder that makes texts {growth:.0f} times longer, expected at most "
            f"{MAX_DECODER_GROWTH:.0f} times",
            hint=_OTHER,
        )


def _tokens(state: Mapping[str, Any]) -> Iterator[str]:
    model = state.get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    for word in words or ():
        yield word[0] if isinstance(word, list) else word  # with its score, of a Unigram model
    for added in state.get("added_tokens") or ():
        yield added["content"]


def _steps(decoder: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [decoder] if isinstance(decoder, dict) else []
    while waiting:
        step = waiting.pop()
        below = step.get("decoders")
        if isinstance(below, list):
            waiting += [each for each in below if isinstance(each, dict)]
        else:
            yield step


def _growth(step: Mapping[str, Any], path: Path) -> float:
    """Return how many times longer a step makes a text at most."""
    if step.get("type") != "Replace":
        return 1.0
    pattern = step.get("pattern")
    text = pattern.get("String") if isinstance(pattern, dict) else None
    if not isinstance(text, str) or not text:
        raise ModelUnusable(
            f"{path} has a decoder that replaces what the pattern {shown(pattern, 120)} matches, "
            "expected a text to replace",
            hint=_OTHER,
        )
    return max(1.0, len(str(step.get("content"))) / len(text))

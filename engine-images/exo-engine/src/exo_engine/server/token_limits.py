"""`bad_words`: texts that an answer may not have, as the tokens that spell them."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.server.api_errors import bad_request
from exo_engine.server.fields import Fields
from exo_engine.server.sampling import Sampling
from exo_engine.server.service import Service

_MAX_WORDS = 1024
_MAX_CHARACTERS = 256
"""Of one word. vLLM has no limits; each word costs a little at every token."""


async def with_bad_words(fields: Fields, sampling: Sampling, service: Service) -> Sampling:
    """Read the field, and forbid the words at the begin of a word and within one, as vLLM does.

    Raises:
        ApiError: it is no list of words.
    """
    words = fields.values.get("bad_words")
    if words is None or words == []:
        return sampling
    if not isinstance(words, list) or not all(isinstance(e, str) and e.strip() for e in words):
        raise fields.wrong("bad_words", "a list of strings that are not blank")
    longest = max(map(len, words))
    if len(words) > _MAX_WORDS or longest > _MAX_CHARACTERS:
        raise bad_request(
            f"bad_words must be at most {_MAX_WORDS} words of at most {_MAX_CHARACTERS} characters, "
            f"got {len(words)} of up to {longest}",
            "bad_words",
        )
    plain = [word.lstrip() for word in words]
    texts = [*plain, *(f" {word}" for word in plain)]
    found = await service.encode_all(texts, add_special_tokens=False, param="bad_words")
    spelled: dict[tuple[int, ...], None] = {}
    for within, behind_blank in zip(found[: len(words)], found[len(words) :], strict=True):
        spelled[tuple(within)] = None
        # Where the blank is a token of its own the word is forbidden by the first already.
        if behind_blank[0] != within[0] and len(behind_blank) == len(within):
            spelled[tuple(behind_blank)] = None
    spelled.pop((), None)
    return replace(sampling, params=replace(sampling.params, bad_words=tuple(spelled)))

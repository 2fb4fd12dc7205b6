"""How much requests may ask for: all of one is copied and sent to the core at once, and kept there until it ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized

from exo_engine.server.api_errors import ApiError, bad_request
from exo_engine.server.core_link import CoreLink, Held
from exo_engine.server.sampling import Sampling

MAX_SEQUENCES = 4096
MAX_TOKENS = 2**22
"""Of all texts of a request, each as often as it is computed or answered: so many reach the core in about a second."""
MAX_REPEATED = 2**20
"""Of what each sequence of a request has a copy of, as `_sizes` counts it: less than 20 MB on the way to the core, and
60 MB there."""
MAX_REPEATED_TOGETHER = 2**22
"""Of all requests that have not ended."""
MAX_COPIED = 2**25
"""Tokens of prompts with several choices, of all requests that have not ended: some 400 MB."""
_SMALL = 4096
"""A request with so much is taken whatever others hold."""
_PER_STOP = 8
_PER_WORD = 2
_PER_BIAS = 2
_BYTES_OF_GRAMMAR = 8
_PER_LOGPROB = 16
"""What a log-probability of a token of the prompt takes, by its memory."""


def check_num_prompts(num_prompts: int, num_choices: int) -> None:
    """Refuse a request that asks for too many sequences at once.

    Raises:
        ApiError: 400 if there are too many.
    """
    num_new = num_prompts * num_choices
    if num_new > MAX_SEQUENCES:
        raise bad_request(f"prompts times n must be at most {MAX_SEQUENCES}, got {num_new}", "n")


def check_num_tokens(number: int, param: str) -> None:
    """Refuse texts that are too many tokens together, though each of them is short enough.

    Args:
        number: tokens; a prompt counts once for each of its answers, a query once for each of its documents.
        param: the field that the texts came from.

    Raises:
        ApiError: 400 if there are more than `MAX_TOKENS`.
    """
    if number > MAX_TOKENS:
        raise bad_request(
            f"the texts of one request must have at most {MAX_TOKENS} tokens together, got {number}; send "
            "several requests",
            param,
        )


def check_copies(prompts: Sequence[Sized], sampling: Sampling, link: CoreLink) -> Held:
    """Refuse what is too much when each of a request's sequences has a copy of its own.

    Args:
        prompts: token ids of each.
        sampling: of the request.
        link: which knows of the requests that have not ended. Beside them a small one is always taken.

    Returns:
        What each sequence has a copy of, for `CoreLink.submit`.

    Raises:
        ApiError: as `check_repeated` and `check_copied` do.
    """
    repeated = check_repeated(sampling, len(prompts) * sampling.num_choices, link)
    return Held(repeated, check_copied(prompts, sampling, link))


def check_repeated(sampling: Sampling, num_sequences: int, link: CoreLink) -> int:
    """Refuse parameters that are too much when each of a request's sequences has a copy of its own.

    Args:
        sampling: of the request.
        num_sequences: prompts times choices.
        link: which knows of the requests that have not ended. Beside them a small one is always taken.

    Returns:
        How much each sequence has, for `CoreLink.submit`.

    Raises:
        ApiError: 400 if all sequences have more than `MAX_REPEATED`, 429 if those of all requests would have more
            than `MAX_REPEATED_TOGETHER`.
    """
    sizes = _sizes(sampling)
    number = sum(sizes.values()) * num_sequences
    if number > MAX_REPEATED:
        largest = max(sizes, key=sizes.__getitem__)
        raise bad_request(
            f"{largest} is too much for {num_sequences} answers (prompts times n), as each of them has all of it: "
            f"lists of token ids, words and grammars of one request must be at most {MAX_REPEATED} token ids, "
            f"counted for each answer, got {number}; shorten it, or send several requests",
            largest,
        )
    if number > _SMALL and (held := link.held.parameters) + number > MAX_REPEATED_TOGETHER:
        raise ApiError(
            429,
            f"too many requests with long lists of token ids, words or grammars: {held} token ids are held for those "
            f"that are being served or wait, this one needs {number}, and {MAX_REPEATED_TOGETHER} is the limit",
            code="queue_full",
            headers={"Retry-After": "1"},
        )
    return sum(sizes.values())


def check_copied(prompts: Sequence[Sized], sampling: Sampling, link: CoreLink) -> int:
    """Refuse prompts of which too much is kept: a copy for each choice, and log-probabilities where they are asked for.

    Args:
        prompts: token ids of each.
        sampling: of the request.
        link: which knows of the requests that have not ended. Beside them a small one is always taken, as is one
            sequence alone.

    Returns:
        How much a sequence has in the mean, in tokens of a copy, for `CoreLink.submit`.

    Raises:
        ApiError: 400 if all sequences have more than `MAX_COPIED`, 429 if those of all requests would have.
    """
    num_top = sampling.params.prompt_logprobs
    if sampling.num_choices == 1 and num_top is None:
        return 0
    if num_top is not None and link.config is not None:  # the core refuses more, and says why
        num_top = min(num_top, link.config.max_logprobs)
    num_sequences = len(prompts) * sampling.num_choices
    weight = 1 if num_top is None else _PER_LOGPROB * (1 + num_top)
    number = sum(map(len, prompts)) * sampling.num_choices * weight
    if number > MAX_COPIED and num_sequences > 1:
        raise bad_request(
            f"prompt_logprobs is too much for {num_sequences} answers (prompts times n): prompt tokens times answers may "
            f"be at most {MAX_COPIED // weight} with it, got {number // weight}; send several requests",
            "prompt_logprobs",
        )
    if number > _SMALL and (held := link.held.prompt) and held + number > MAX_COPIED:
        raise ApiError(
            429,
            "too many requests with several answers to long prompts, or with prompt_logprobs: "
            f"{held} tokens are held for those that are being served or wait, this one needs {number}, and "
            f"{MAX_COPIED} is the limit",
            code="queue_full",
            headers={"Retry-After": "1"},
        )
    return number // num_sequences


def _sizes(sampling: Sampling) -> dict[str, int]:
    """Return what a sequence's copy of each field takes, by the memory of a token id in a list (36 bytes)."""
    params = sampling.params
    return {
        "stop": _size_of_texts(sampling.stop, _PER_STOP),
        "stop_token_ids": len(params.stop_token_ids),
        "logit_bias": _PER_BIAS * len(params.logit_bias or ()),
        "allowed_token_ids": len(params.allowed_token_ids or ()),
        "bad_words": _size_of_texts(params.bad_words, _PER_WORD),
        sampling.constrained_by: len((params.structured_outputs or "").encode())
        // _BYTES_OF_GRAMMAR,
    }


def _size_of_texts(texts: Iterable[Sized], per_text: int) -> int:
    return sum(len(text) + per_text for text in texts)

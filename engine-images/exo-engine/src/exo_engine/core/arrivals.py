"""What becomes of a request on arrival: a sequence, or a refusal because it can never fit."""

from __future__ import annotations

from hashlib import blake2b

from exo_engine.core.block_manager import prefix_root
from exo_engine.core.request import EngineRequest
from exo_engine.core.sequence import Sequence
from exo_engine.errors import PromptTooLong, RequestError


def make_sequence(
    request: EngineRequest, *, arrival: int, longest: int, seed: int, has_priority: bool
) -> Sequence:
    """Return a sequence that waits for its turn.

    Args:
        request: what was asked for.
        arrival: its number among all requests.
        longest: most tokens that prompt and output may have together.
        seed: of the engine, for requests without one of their own.
        has_priority: whether the requests' priorities count.

    Raises:
        RequestError: the prompt is empty.
        PromptTooLong: it can never fit, even alone.
    """
    wants_prompt_logprobs = request.params.prompt_logprobs is not None
    return Sequence(
        request=request,
        arrival=arrival,
        rank=(request.priority if has_priority else 0, arrival),
        max_total_tokens=_max_total_tokens(request, longest),
        sampling_key=_sampling_key(request, seed),
        prefix_root=prefix_root(request.cache_salt),
        token_ids=list(request.prompt_token_ids),
        prompt_logprobs=[None] * len(request.prompt_token_ids) if wants_prompt_logprobs else None,
    )


def _max_total_tokens(request: EngineRequest, longest: int) -> int:
    num_prompt = len(request.prompt_token_ids)
    if num_prompt == 0:
        raise RequestError("the prompt has no tokens; at least one is needed", param="prompt")
    if num_prompt >= longest:
        raise PromptTooLong(
            f"the prompt has {num_prompt} tokens, but prompt and output together may have at "
            f"most {longest}",
            param="prompt",
            hint="Shorten the prompt, or raise --max-model-len.",
        )
    if request.params.max_tokens is None:
        return longest
    total = num_prompt + request.params.max_tokens
    if total > longest:
        raise PromptTooLong(
            f"the prompt has {num_prompt} tokens and max_tokens is {request.params.max_tokens}, "
            f"together {total}, but at most {longest} are possible",
            param="max_tokens",
            hint=f"Lower max_tokens to {longest - num_prompt} or less, or shorten the prompt.",
        )
    return total


def _sampling_key(request: EngineRequest, seed: int) -> int:
    if request.params.seed is not None:
        return request.params.seed % 2**64
    material = f"{seed}/{request.request_id}".encode()
    return int.from_bytes(blake2b(material, digest_size=8).digest(), "little")

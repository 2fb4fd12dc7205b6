"""How much one request may ask for: all of it is copied and sent to the core at once."""

from __future__ import annotations

from exo_engine.server.api_errors import bad_request

MAX_SEQUENCES = 4096
MAX_TOKENS = 2**22
"""Of all texts of a request, each as often as it is computed or answered: so many reach the core in about a second."""


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

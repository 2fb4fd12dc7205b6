"""What a model is for, and the routes that need one of a kind; others get any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from exo_engine.server.api_errors import bad_request
from exo_engine.server.messages import CoreInfo

Task = Literal["generate", "embed", "score", "classify", "pool"]
_OF_ROUTES: Final[Mapping[str, Task]] = {
    "/v1/completions": "generate",
    "/v1/chat/completions": "generate",
    "/v1/responses": "generate",
    "/v1/messages": "generate",
    "/v1/messages/count_tokens": "generate",
    "/v1/embeddings": "embed",
    "/v1/score": "score",
    "/score": "score",
    "/v1/rerank": "score",
    "/rerank": "score",
    "/v2/rerank": "score",
    "/classify": "classify",
    "/pooling": "pool",
}
_ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "score": ("embed",),
    "classify": ("score",),
    "pool": ("embed", "score", "classify"),
}
"""What other kinds of model a task can be done with."""
_MODELS: Final[Mapping[str, str]] = {
    "generate": "generates text: use /v1/chat/completions or /v1/completions",
    "embed": "embeds texts: use /v1/embeddings, /v1/score or /v1/rerank",
    "score": "scores pairs of texts: use /v1/score or /v1/rerank",
    "classify": "tells labels of texts: use /classify",
}


def check_task(info: CoreInfo | None, path: str) -> None:
    """Refuse a request that is for a model of another kind.

    Raises:
        ApiError: 400 with what the model is for.
    """
    found = "generate" if info is None or info.pooling is None else info.pooling.task
    task = _OF_ROUTES.get(path, found)
    if task != found and found not in _ALSO.get(task, ()):
        raise bad_request(
            f"{path} is not for this model, which {_MODELS[found]}",
            "model",
            "unsupported_by_model",
        )

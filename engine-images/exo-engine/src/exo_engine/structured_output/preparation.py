"""Requests that wait for their grammar to be compiled, before the scheduler knows of them.

`EngineCore` puts them here, and asks before each step who may go on. Compiling happens beside the steps,
so nobody else waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from exo_engine import pulse
from exo_engine.core.executor import Executor
from exo_engine.core.request import EngineRequest, RequestOutput
from exo_engine.errors import RequestError

_PATIENCE_SECONDS = 0.05
"""How long the core waits for a grammar while it has nothing else to do; then it looks for messages."""


class Preparation:
    """Requests with a grammar, in the order in which they came.

    Args:
        executor: compiles.
        admit: takes a request whose grammar is there; may raise RequestError.
    """

    def __init__(self, executor: Executor, admit: Callable[[EngineRequest], None]) -> None:
        self._executor = executor
        self._admit = admit
        self._held: dict[str, tuple[EngineRequest, Future[None]]] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._held)

    def hold(self, request: EngineRequest, grammar: str) -> None:
        """Have a grammar compiled for a request."""
        self._held[request.request_id] = (request, self._executor.prepare(grammar))

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget requests; unknown ids are ignored."""
        for request_id in request_ids:
            self._held.pop(request_id, None)

    def wait(self) -> None:
        """Wait a little for the first grammar; it compiles within limits, so that this is no hang."""
        _, prepared = next(iter(self._held.values()))
        self._executor.wait(prepared, _PATIENCE_SECONDS)
        pulse.OWN.beat()

    def release(self) -> list[RequestOutput]:
        """Let those go on whose grammar is there; return the ends of those that cannot."""
        ready = [request for request, prepared in self._held.values() if prepared.done()]
        return [output for output in map(self._release, ready) if output is not None]

    def _release(self, request: EngineRequest) -> RequestOutput | None:
        _, prepared = self._held.pop(request.request_id)
        try:
            prepared.result()
            self._admit(request)
        except RequestError as exc:
            return RequestOutput(request.request_id, finish_reason="error", fault=exc.message)
        return None

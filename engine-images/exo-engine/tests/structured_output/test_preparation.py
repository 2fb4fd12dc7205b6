"""Requests wait for their grammars, and the server sees that the core is well meanwhile."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace

from exo_engine import pulse
from exo_engine.core.request import EngineRequest
from exo_engine.sampling_params import SamplingParams
from exo_engine.structured_output.preparation import Preparation


def test_waiting_for_a_grammar_is_no_hang() -> None:
    compiled: Future[None] = Future()
    executor = SimpleNamespace(
        prepare=lambda grammar: compiled, wait=lambda prepared, seconds: None
    )
    admitted: list[EngineRequest] = []
    preparation = Preparation(executor, admitted.append)
    request = EngineRequest("a", (1,), SamplingParams(), 0)
    preparation.hold(request, "grammar")
    begun = time.monotonic()
    preparation.wait()
    assert pulse.OWN.last_beat >= begun
    assert preparation.release() == []
    assert admitted == []
    compiled.set_result(None)
    assert preparation.release() == []
    assert admitted == [request]

"""Finding a parameter by a word."""

import pytest

from exo_inference.engines import get_engine, vllm
from exo_inference.engines.flags.search import search_parameters


def found(text: str) -> list[str]:
    return [p.name for p in search_parameters(vllm.ENGINE.parameters("0.28.0"), text)]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("max-model-len", "max-model-len"),
        ("--max_model_len", "max-model-len"),
        ("context", "max-model-len"),
        ("gpu memory", "gpu-memory-utilization"),
        ("-tp", "tensor-parallel-size"),
        ("tool", "enable-auto-tool-choice"),
    ],
)
def test_likeliest_parameter_comes_first(text: str, first: str) -> None:
    hits = found(text)
    assert first in hits[:8]
    assert hits[0] == first or text in ("tool", "context")


def test_words_are_looked_for_in_descriptions_and_values() -> None:
    assert "kv-cache-dtype" in found("turboquant_k8v4")
    assert "enforce-eager" in found("cuda graphs")


def test_nothing_is_found_for_nonsense_and_all_for_nothing() -> None:
    assert found("xyzzy") == []
    assert len(found("  ")) == len(vllm.ENGINE.parameters("0.28.0"))


def test_engine_of_the_project_can_be_searched_too() -> None:
    hits = search_parameters(get_engine("exo").parameters(), "context-length")
    assert [parameter.name for parameter in hits][:1] == ["max-model-len"]

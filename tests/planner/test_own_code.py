"""Models that bring code of their own are planned where flags have vLLM run it."""

from __future__ import annotations

import pytest

from exo_inference.planner import Verdict, advise, find_gpu, find_model, plan
from exo_inference.planner.parameters import EngineParameters

_GTE, _RANKS = (
    f'--hf-overrides={{"architectures":["{name}"]}}'
    for name in ("GteNewModel", "GteNewForSequenceClassification")
)


@pytest.mark.parametrize(
    ("name", "given", "missing"),
    [
        ("jinaai/jina-embeddings-v3", (), ("--trust-remote-code",)),
        ("jinaai/jina-embeddings-v3", ("--trust_remote_code",), ()),
        ("Alibaba-NLP/gte-multilingual-base", (), ("--trust-remote-code", _GTE)),
        ("Alibaba-NLP/gte-multilingual-base", ("--trust-remote-code",), (_GTE,)),
        ("Alibaba-NLP/gte-multilingual-reranker-base", ("--trust-remote-code",), (_RANKS,)),
        ("Snowflake/snowflake-arctic-embed-m-v2.0", (), ()), ("BAAI/bge-m3", (), ()),
    ],
)  # fmt: skip
def test_code_that_comes_with_a_model_is_run_only_where_flags_say_so(
    name: str, given: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    model, gpu, flags = find_model(name), find_gpu("L4"), EngineParameters(others=given)
    result = plan(model, gpu, 1, flags)
    assert result.verdict is (Verdict.REFUSED if missing else Verdict.FITS)
    for flag in missing:
        assert flag in result.problems[0].detail
    first = next(iter(advise(model, gpu, 1, flags)), None)
    assert (first.plan.parameters.others if first else given) == (*given, *missing)

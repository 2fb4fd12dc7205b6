"""Models that bring code of their own are planned where flags have vLLM run it."""

from __future__ import annotations

import pytest

from exo_inference.planner import Verdict, advise, find_gpu, find_model, plan
from exo_inference.planner.releases.own_code import own_code_values
from tests.planner.flags import settings_of

_GTE, _RANKS = (
    f'--hf-overrides={{"architectures":["{name}"]}}'
    for name in ("GteNewModel", "GteNewForSequenceClassification")
)
_WITH_FOO = '--hf-overrides={"architectures":["GteNewModel"],"foo":1}'


@pytest.mark.parametrize(
    ("name", "given", "missing"),
    [
        ("jinaai/jina-embeddings-v3", (), ("--trust-remote-code",)),
        ("jinaai/jina-embeddings-v3", ("--trust_remote_code",), ()),
        ("Alibaba-NLP/gte-multilingual-base", (), ("--trust-remote-code", _GTE)),
        ("Alibaba-NLP/gte-multilingual-base", ("--trust-remote-code",), (_GTE,)),
        ("Alibaba-NLP/gte-multilingual-base", ("--trust-remote-code", "--hf-overrides.foo=1"), (_WITH_FOO,)),
        ("Alibaba-NLP/gte-multilingual-base", ("--trust-remote-code", '--hf-overrides={"architectures":["X"]}'), (_GTE,)),
        ("Alibaba-NLP/gte-multilingual-base", ("--no-trust-remote-code", _GTE), ("--trust-remote-code",)),
        ("Alibaba-NLP/gte-multilingual-base", ("--trust-remote-code", "--hf_overrides", _GTE.partition("=")[2]), ()),
        ("Alibaba-NLP/gte-multilingual-reranker-base", ("--trust-remote-code",), (_RANKS,)),
        ("Snowflake/snowflake-arctic-embed-m-v2.0", (), ()), ("BAAI/bge-m3", (), ()),
    ],
)  # fmt: skip
def test_code_that_comes_with_a_model_is_run_only_where_flags_say_so(
    name: str, given: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    model, gpu, flags = find_model(name), find_gpu("L4"), settings_of(given)
    result = plan(model, gpu, 1, flags)
    assert result.verdict is (Verdict.REFUSED if missing else Verdict.FITS)
    for flag in missing:
        assert flag in result.problems[0].detail
    first = next(iter(advise(model, gpu, 1, flags)), None)
    after = first.plan.parameters if first else flags
    assert own_code_values(model, after) == {}
    assert after.format()[len(after.format()) - len(missing) :] == list(missing)
    assert settings_of(after.format()) == after

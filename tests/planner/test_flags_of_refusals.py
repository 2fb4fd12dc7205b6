"""Advice for a plan that is refused for flags: what the refusal names comes first, and fits."""

from __future__ import annotations

import pytest

from exo_inference.planner import Verdict, advise, cpu_as_gpu, find_model, plan
from tests.planner.flags import settings_of

CPU = cpu_as_gpu(16 * 2**30, is_fast_in_bfloat16=True, kernels="avx512_bf16")
KEPT = ("--no-batch-invariant",)
ALWAYS = ("--attention-backend=auto",)


@pytest.mark.parametrize(
    ("asked", "first", "second"),
    [
        (("--quantization=int4", "--batch-invariant", "--dtype=float32"), ("--dtype=bfloat16",), KEPT),
        (("--batch-invariant", "--quantization=fp8"), ("--quantization=int8",), KEPT),
        (("--batch-invariant", "--kv-cache-dtype=fp8"), ("--kv-cache-dtype=int8",), KEPT),
        (("--batch-invariant", "--block-size=8"), ("--block-size=16",), KEPT),
        (("--batch_invariant", "--attention-backend", "reference"), ALWAYS, KEPT),
        (("--attention-backend=cpu", "--dtype=float32"), ("--dtype=bfloat16",), ALWAYS),
        (
            ("--batch-invariant", "--attention-backend=triton", "--dtype=float32", "--kv-cache-dtype=fp8"),
            ("--kv-cache-dtype=int8", "--dtype=bfloat16", *ALWAYS),
            (*ALWAYS, *KEPT),
        ),
        (("--attention-backend", "triton"), ALWAYS, None),
        (("--attention-backend=flashinfer",), ALWAYS, None),
    ],
)  # fmt: skip
def test_the_flags_that_a_refusal_names_are_advised_first(
    asked: tuple[str, ...], first: tuple[str, ...], second: tuple[str, ...] | None
) -> None:
    model, parameters = find_model("Qwen/Qwen3-0.6B"), settings_of(list(asked), engine="exo")
    assert plan(model, CPU, 1, parameters).verdict is Verdict.REFUSED
    found = advise(model, CPU, 1, parameters)
    by_flags = [each for each in found if not each.options]
    assert found[: len(by_flags)] == tuple(by_flags)
    assert [each.flags for each in by_flags] == [first, second][: len(by_flags)]
    assert len(by_flags) == (1 if second is None else 2)
    for each in by_flags:
        assert each.kinds == ("flags",)
        pasted = settings_of([*parameters.format(), *each.flags], engine="exo")
        again = plan(model, CPU, 1, pasted)
        assert (again.verdict, again.problems) == (Verdict.FITS, ())
        assert again.speed == each.plan.speed


def test_a_flag_is_left_out_where_no_flag_beside_it_helps() -> None:
    asked = ["--batch-invariant", "--dtype=float32"]
    model, parameters = find_model("google/gemma-3-1b-it"), settings_of(asked, engine="exo")
    [found] = [each for each in advise(model, CPU, 1, parameters) if not each.options]
    assert found.flags == KEPT
    assert found.quality == "unchanged"
    assert "bits of an answer may depend" in found.effect


def test_flags_and_a_shorter_context_are_advised_together() -> None:
    asked = ["--batch-invariant", "--kv-cache-dtype=fp8", "--max-model-len=40000"]
    parameters = settings_of([*asked, "--kv-cache-memory-bytes=2G"], engine="exo")
    first = advise(find_model("Qwen/Qwen3-0.6B"), CPU, 1, parameters)[0]
    assert first.kinds == ("flags", "max-model-len")
    assert first.plan.verdict is Verdict.FITS
    assert "--kv-cache-dtype=int8" in first.flags

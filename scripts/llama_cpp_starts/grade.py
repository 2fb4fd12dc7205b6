"""Writes the grades of plans for llama.cpp as a Markdown page, `docs/benchmarks/planner-llama-cpp.md`.

python -m scripts.llama_cpp_starts.grade --cases STARTS.json --explanations EXPLANATIONS.json [--write PAGE.md]
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from exo_inference.planner.llama_cpp.constants import CONTEXT, load_constants
from scripts.grade_planner import write_grades
from scripts.llama_cpp_starts.predict import (
    QUANTITIES,
    beside_buffers,
    compare,
    not_graded,
    outcomes,
)
from scripts.planner_halves import split

_LIMIT = 0.05
"""What is further off is named with its cause."""

_HEAD = """# Plans for llama.cpp, graded

What the planner predicts for llama.cpp against what it printed when it really started, over all GPUs of a start. Errors are
relative to the printed figure. The starts are in [`planner-llama-cpp-starts.json`](planner-llama-cpp-starts.json), with what is
known of each. They were found on 2026-11-28 and written down before there was a planner to ask; eight more ("second") were found when
the rules were fixed, and written down before it was asked of them. The rule that splits the starts
of vLLM (`scripts/planner_halves.py`) splits these, too: by model and GPU. Written by `make planner-calibrate`; the rules are on
[planning](../concepts/planning.md#llamacpp).
"""

_CONSTANTS = """## The constants

What no source says. The rules are llama.cpp's own, so that the starts set no factor of weights, cache or compute buffers: the
last two rows are the bands around what is predicted, and their middle is not used.

| constant | starts | value | between |
| --- | ---: | ---: | ---: |
"""

_RULES = """## How it is graded

- *Weights* are the model buffers of the GPUs, *cache* is that of tokens and, where it is printed, of states, *compute buffers* are
  what llama.cpp reserves of each GPU. They are printed in MiB, some in whole ones.
- Builds of before June 2026, and programs other than llama-server, have room for the logits of every token of a batch; a log says
  so, or its date. The planner plans the release of the catalogue, and its rules of those builds are for grading alone.
- Rules were read in llama.cpp's source and checked on buffers that a build reserves for models without their tensors, which
  `tests/planner/test_llama_cpp_buffers.py` repeats. What starts of the calibration half showed beside that: the second order of
  Gemma's inputs for each layer, queries with a gate, and a layer's cache that a GPU fetches from main memory. Starts of the graded
  half showed what a GPU fetches of weights (`hermes3-8b-q4_0-rtx2060-15layers`), that biases of experts move with them, and the
  masks of old builds (`glm45-air-b6168-rtxpro6000-128k`): these figures are no test of the rules for them.
- The grades of compute buffers are not blind: after the first comparison, rules of theirs were changed for misses of the calibration
  half while the errors of the graded half were in view.
- That the model of three starts (`smollm2-135m-b9665-2xa40` and the two of `logdetective-mistral-7b`) was inferred from their own
  figures was marked after they were written down, and before they were graded.
- What a file names no types for is not graded; nor is what a model was inferred from, or another maker's GPU.
"""


def render(cases: Sequence[Mapping[str, Any]], explanations: Mapping[str, str]) -> str:
    """Return the page of both halves."""
    setting, graded = split(cases)
    lines = [_HEAD, f"## The graded half\n\n{len(graded)} starts; no constant was set on them.\n"]
    lines += [
        *_table(graded),
        "",
        f"## The calibration half\n\n{len(setting)} starts.\n",
        *_table(setting),
        "",
    ]
    rows = [
        f"| {name} | {each.starts} | {each.value:g} | {each.low:g} to {each.high:g} |"
        for name, each in load_constants().items()
    ]
    lines += [
        _CONSTANTS + "\n".join(rows),
        "",
        _beside(graded),
        "",
        f"## More than {_LIMIT:.0%} off\n",
        *_misses(cases, explanations),
        "",
    ]
    lines += ["## Not graded\n", *_left_out(cases), "", _RULES.rstrip()]
    return "\n".join(lines) + "\n"


def _beside(cases: Sequence[Mapping[str, Any]]) -> str:
    """Say how the graded half's figures beside buffers lie to the band."""
    found, band = list(beside_buffers(cases)), load_constants()[CONTEXT]
    inside = sum(band.low <= size <= band.high for _, size in found)
    listed = ", ".join(f"{size:,.0f} (`{case}`)" for case, size in found)
    return (
        f"Of {len(found)} starts of the graded half that say what a GPU held beside buffers, {inside} lie within the first band: "
        f"{listed} MiB. That its upper end is llama.cpp's own margin was settled when they were known: double the one "
        "machine's figure, 534, holds four of them."
    )


def _table(cases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| quantity | starts | mean error | median | largest | within 1 % |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    compared = list(compare(cases))
    for quantity in QUANTITIES:
        errors = [abs(each.error) for each in compared if each.quantity == quantity]
        if errors:
            exact = sum(error <= 0.01 for error in errors)
            yield (
                f"| {quantity} | {len(errors)} | {statistics.fmean(errors):.2%} | {statistics.median(errors):.2%} | "
                f"{max(errors):.1%} | {exact} |"
            )
    judged = list(outcomes(cases))
    right = sum(went_on == has_room for _, went_on, has_room in judged)
    yield ""
    yield f"Of {len(judged)} starts whose GPU is known, the middle of the plan says of {right} rightly whether they went on."


def _misses(cases: Sequence[Mapping[str, Any]], explanations: Mapping[str, str]) -> Iterator[str]:
    for each in compare(cases):
        if abs(each.error) > _LIMIT:
            cause = explanations.get(each.case, "the cause is not known")
            yield f"- `{each.case}`, {each.quantity}: printed {each.printed:,.2f} MiB, predicted {each.predicted:,.2f}: {cause}"
    for case, went_on, has_room in outcomes(cases):
        if went_on != has_room:
            cause = explanations.get(f"{case} outcome", "the cause is not known")
            yield f"- `{case}`: it {'went on' if went_on else 'ended for lack of memory'}: {cause}"


def _left_out(cases: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for case, quantity, reason in not_graded(cases):
        reasons.setdefault((case, reason), []).append(quantity)
    for (case, reason), quantities in reasons.items():
        yield f"- `{case}`, {', '.join(quantities)}: {reason}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade a file of starts; print the page or write it."""
    return write_grades("llama_cpp_starts.grade", "llama.cpp", render, arguments)


if __name__ == "__main__":
    raise SystemExit(main())

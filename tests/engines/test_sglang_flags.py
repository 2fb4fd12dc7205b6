"""Every flag of SGLang that a user may set is planned with, told as not known, or listed as harmless."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exo_inference.engines.sglang import ENGINE

HARMLESS = Path(__file__).parent / "sglang_harmless.json"
"""Flags that were looked up in the source of 0.5.17, and change neither weights nor pools nor the share by default.

Those that say how another flag works (`--speculative-num-steps`, `--hicache-ratio`) are here: that one is told.
"""


def test_every_flag_is_honoured_told_or_harmless() -> None:
    meaning = ENGINE.meaning
    assert meaning is not None
    judged = set(meaning.settings) | meaning.others | set(meaning.other_values) | meaning.of_share
    judged = judged.union(*meaning.of_traits.values())
    harmless = set(json.loads(HARMLESS.read_text("utf-8")))
    flags = {parameter.name for parameter in ENGINE.parameters()}
    assert judged & harmless == set()
    assert judged | harmless == flags


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("16384", 16384), ("32k", 32000), ("25.6k", 25600), ("1M", 10**6), ("8Ki", 8192)],
)
def test_numbers_of_tokens_end_in_the_suffixes_that_it_reads(text: str, tokens: int) -> None:
    reading = ENGINE.read(["--context-length", text])
    assert (reading.problems, reading.values) == ((), {"context-length": tokens})


@pytest.mark.parametrize("text", ["32K", "1m", "1.5Ki", "32ki", "k"])
def test_other_suffixes_are_refused(text: str) -> None:
    (problem,) = ENGINE.read(["--context-length", text]).problems
    assert problem.reason == "type"

"""The flags of SGLang are its parser's; each that a user may set is planned with, told as not known, or harmless."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from exo_inference.engines.sglang import ENGINE

PARSER = Path(__file__).parent / "sglang_parser.json"
"""What the parser of a release takes; `scripts/sglang_catalogue/read_parser.py` reads it from the wheel."""

ABBREVIATIONS = {"--tp", "--dp"}
"""argparse takes the beginning of one flag for it; these two are common, and the other ones are refused."""

HARMLESS = Path(__file__).parent / "sglang_harmless.json"
"""Flags that were looked up in the source of 0.5.17, and change neither weights nor pools nor the share by default.

Those that say how another flag works (`--speculative-num-steps`, `--hicache-ratio`) are here: that one is told.
"""

READ_AS_JSON = {"json-model-override-args"}
"""Text for the parser, which SGLang reads as JSON later."""


def test_every_flag_is_honoured_told_or_harmless() -> None:
    meaning = ENGINE.meaning
    assert meaning is not None
    judged = set(meaning.settings) | meaning.others | set(meaning.other_values) | meaning.of_share
    judged = judged.union(*meaning.of_traits.values())
    harmless = set(json.loads(HARMLESS.read_text("utf-8")))
    flags = {parameter.name for parameter in ENGINE.parameters()}
    assert judged & harmless == set()
    assert judged | harmless == flags


def test_the_catalogue_is_the_parser_of_its_release() -> None:
    parser = json.loads(PARSER.read_text("utf-8"))
    path = resources.files("exo_inference.engines") / "catalog" / "sglang.json"
    catalogue = json.loads(path.read_text("utf-8"))
    assert catalogue["release"] == parser["release"]
    ours = {"name", "section", "description"}
    rows = []
    for record in catalogue["flags"]:
        if record["name"] in READ_AS_JSON:
            record["type"] = "string"
        row = {key: value for key, value in record.items() if key not in ours}
        rows.append({"default": "", **row, "flags": sorted(set(row["flags"]) - ABBREVIATIONS)})
        assert record["flags"][0] == f"--{record['name']}"
        assert record["description"].endswith("."), record["name"]
    theirs = [{**row, "flags": sorted(row["flags"])} for row in parser["flags"]]
    assert sorted(rows, key=_spellings) == sorted(theirs, key=_spellings)


def test_abbreviations_are_the_beginning_of_one_flag_alone() -> None:
    rows = json.loads(PARSER.read_text("utf-8"))["flags"]
    spellings = [flag for row in rows for flag in row["flags"]]
    for short in ABBREVIATIONS:
        (meant,) = (spelling for spelling in spellings if spelling.startswith(short))
        assert short not in spellings
        assert ENGINE.flags.by_spelling[short] is ENGINE.flags.by_spelling[meant]


def _spellings(row: dict[str, list[str]]) -> list[str]:
    return row["flags"]


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


@pytest.mark.parametrize(
    ("text", "hint"),
    [("4M", "write it out: 4000000"), ("4Ki", "write it out: 4096"), ("4K", "write it out: 4096"), ("0k", "")],
)  # fmt: skip
def test_numbers_that_take_no_suffix_are_written_out_as_it_reads_them_elsewhere(
    text: str, hint: str
) -> None:
    (problem,) = ENGINE.read(["--max-running-requests", text]).problems
    assert ("write it out" in problem.detail) == bool(hint)
    assert hint in problem.detail


def test_flags_that_turn_off_what_is_on_are_read() -> None:
    reading = ENGINE.read(["--no-dllm-fdfo", "--cuda-graph-bs-decode", "1", "8"])
    assert reading.values == {"dllm-fdfo": False, "cuda-graph-bs-decode": (1, 8)}


@pytest.mark.parametrize(
    "flag",
    [
        *("--grpc-port", "--grpc-http-sidecar-port", "--engine-info-bootstrap-port", "--sidecar"),
        *("--ssl-keyfile", "--encoder-bootstrap-port", "--decoupled-spec-bind-endpoint"),
        *("--weight-cache-socket", "--lmcache-config-file", "--spec-trace-dir"),
        "--forward-pass-metrics-ipc-name",
    ],
)
def test_flags_that_open_ports_or_name_files_of_a_pod_are_the_platforms(flag: str) -> None:
    (problem,) = ENGINE.read([f"{flag}=1"]).problems
    assert problem.reason == "owned"

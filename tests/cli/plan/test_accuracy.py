"""`plan accuracy` in each form: of the control plane's starts, and of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Exo
from tests.cli.fake_api import FakeApi
from tests.preflight.test_starts import CPU, make_start

FORM = {
    "num_cases", "quantities", "fit", "beyond", "graded", "not_graded",
}  # fmt: skip
CASE: dict[str, Any] = {
    "id": "llama-l4", "engine": "vllm", "engine_version": "0.12.0", "gpu": "L4", "gpu_count": 1,
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "flags": {"max_model_len": 32000, "gpu_memory_utilization": 0.92, "max_num_seqs": 128},
    "observed": {"weights_gib_per_gpu": 14.9889, "available_kv_gib": 4.75, "kv_tokens": 38944,
                 "outcome": "fits"},
}  # fmt: skip
FAR = {**CASE, "id": "far\x1b[31m", "observed": {**CASE["observed"], "kv_tokens": 20000}}
REFUSED = {**CASE, "id": "small", "observed": {"outcome": "refused"}}
UNSTATED = {**CASE, "id": "dateless", "engine_version": None}


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"cases": [CASE, FAR, REFUSED, UNSTATED]}))
    return path


@pytest.fixture
def starts(api: FakeApi) -> FakeApi:
    near, far = make_start(), make_start({**CPU, "weights_bytes": 3 * 10**9})
    answer = [each.to_wire() for each in (near, far.model_copy(update={"replica": "far-1"}))]
    api.answers["GET /v2/ai/plan/starts"] = (200, {"starts": answer})
    return api


def test_a_file_is_graded_without_a_control_plane(exo: Exo, cases: Path) -> None:
    result = exo("ai", "plan", "accuracy", "--cases", str(cases))
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "4 starts in the file"
    (row,) = [line.split() for line in lines if line.startswith("  KV capacity in tokens ")]
    assert row[4] == "2"
    assert row[-4:] == ["6", "/", "-", "missed"]
    assert "Beyond 6 %: KV capacity in tokens" in lines
    assert "Fit or not: right in 2 of 3, 66.7 %; limit 97 %: missed" in lines
    assert "  small: predicted fits, was refused" in lines
    assert "  available KV memory, fit: its engine version is not stated" in lines
    assert "    dateless" in lines
    assert "\x1b" not in result.out


def test_json_has_everything(exo: Exo, cases: Path) -> None:
    result = exo("ai", "plan", "accuracy", "--cases", str(cases), "-O", "json")
    found = json.loads(result.out)
    assert found.keys() == FORM
    tokens = {row["quantity"]: row for row in found["quantities"]}["KV capacity in tokens"]
    assert tokens.keys() == {
        "quantity", "count", "mean", "median", "p95", "worst", "bias", "limit_mean", "limit_p95",
        "is_met",
    }  # fmt: skip
    assert (tokens["count"], tokens["limit_mean"], tokens["is_met"]) == (2, 0.06, False)
    assert found["fit"] == {
        "count": 3, "right": 2, "limit": 0.97,
        "wrong": [{"case": "small", "predicted": "fits", "outcome": "refused"}],
    }  # fmt: skip
    beyond = found["beyond"][0]
    assert (beyond["case"], beyond["quantity"]) == ("far\x1b[31m", "KV capacity in tokens")
    assert beyond["error"] == pytest.approx(beyond["predicted"] / beyond["measured"] - 1)
    assert beyond in found["graded"]
    assert found["not_graded"][0].keys() == {"case", "quantity", "reason"}


def test_what_is_unstated_is_graded_when_asked_for(exo: Exo, cases: Path) -> None:
    result = exo(
        "ai", "plan", "accuracy", "--cases", str(cases), "--include-unstated", "-O", "json"
    )
    assert json.loads(result.out)["num_cases"] == 4


def test_text_and_templates_have_a_line_for_each_quantity(exo: Exo, cases: Path) -> None:
    line = ("ai", "plan", "accuracy", "--cases", str(cases))
    rows = [row.split("\t") for row in exo(*line, "-O", "text").out.splitlines()]
    assert rows[0][0] == "weights, known checkpoint"
    assert {len(row) for row in rows} == {7}
    template = exo(*line, "--output-template", "{{.Quantity}}={{.Count}}")
    assert "KV capacity in tokens=2" in template.out.splitlines()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ('{"cases": 1}', "holds no cases"),
        ('[{"id": "a"}]', "cases[0].engine is missing, expected a text"),
        (b"\xff\xfe", "is not text"),
        (None, "No such file"),
    ],
    ids=["torn", "shape", "case", "binary", "missing"],
)
def test_a_bad_file_is_a_usage_error(
    exo: Exo, tmp_path: Path, text: str | bytes | None, said: str
) -> None:
    path = tmp_path / "cases.json"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    result = exo("ai", "plan", "accuracy", "--cases", str(path))
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert "cases.json" in result.err


def test_the_control_planes_starts_are_graded(exo: Exo, starts: FakeApi) -> None:
    result = exo("ai", "plan", "accuracy")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("2 recorded starts\n")
    assert "Fit or not: right in 2 of 2, 100.0 %; limit 97 %\n" in result.out
    (missed,) = [line for line in result.out.splitlines() if line.startswith("  far-1")]
    assert missed.split()[1:] == ["2.22", "GiB", "2.79", "GiB", "-20.5", "%"]


def test_without_starts_it_says_when_there_are_some(exo: Exo, api: FakeApi) -> None:
    api.answers["GET /v2/ai/plan/starts"] = (200, {"starts": []})
    result = exo("ai", "plan", "accuracy")
    assert (result.code, result.out) == (0, "0 recorded starts\n")
    assert "No starts are recorded yet" in result.err


def test_a_control_plane_that_records_none_says_so(exo: Exo, api: FakeApi) -> None:
    api.answers["GET /v2/ai/plan/starts"] = (404, {"message": "Not Found"})
    result = exo("ai", "plan", "accuracy")
    assert result.code == 1
    assert "records no starts" in result.err
    assert "--cases" in result.err


def test_exported_starts_can_be_graded(exo: Exo, starts: FakeApi, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("old")
    saved = exo("ai", "plan", "accuracy", "--export", str(path))
    assert (saved.code, saved.out) == (0, f"2 starts written to {path}\n")
    again = exo("ai", "plan", "accuracy", "--cases", str(path), "-O", "json")
    own = exo("ai", "plan", "accuracy", "-O", "json")
    rows = [{**row} for row in json.loads(again.out)["quantities"]]
    assert rows == [pytest.approx(row) for row in json.loads(own.out)["quantities"]]


@pytest.mark.parametrize(
    "flags",
    [("--include-unstated",), ("--cases", "a.json", "--export", "b.json")],
    ids=["unstated alone", "export of a file"],
)
def test_options_that_do_not_go_together_are_refused(exo: Exo, flags: tuple[str, ...]) -> None:
    assert exo("ai", "plan", "accuracy", *flags).code == 2


def test_an_export_that_cannot_be_written_fails(exo: Exo, starts: FakeApi, tmp_path: Path) -> None:
    result = exo("ai", "plan", "accuracy", "--export", str(tmp_path / "none" / "mine.json"))
    assert result.code == 1
    assert "cannot write" in result.err

"""Packages and load generators that nobody here wrote work against gateway and engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clients.conftest import MODEL, MODEL_DIR, Server

pytestmark = pytest.mark.clients
PROGRAMS = Path(__file__).with_name("programs")
ENVIRONMENTS = Path(os.environ.get("CLIENT_ENVIRONMENTS", "."))
"""With one virtual environment for each of `requirements/*.txt` beside this file; `make test-clients` makes them."""
SECONDS = 600
NUM_REQUESTS = 100
NUM_OUTPUT_TOKENS = 16


def run(
    environment: str,
    *words: str | Path,
    server: Server,
    cwd: Path,
    is_hub_offline: bool = True,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a program of an environment, offline; return what it printed."""
    binaries = ENVIRONMENTS / environment / "bin"
    assert (binaries / "python").exists(), f"no {binaries}: run `make test-clients`"
    result = subprocess.run(
        [binaries / str(words[0]), *words[1:]],
        cwd=cwd, capture_output=True, text=True, timeout=SECONDS,
        env={
            "PATH": f"{binaries}:{os.environ['PATH']}", "HOME": str(cwd), "PYTHONUNBUFFERED": "1",
            "CLIENT_URL": server.url, "CLIENT_KEY": server.key, "CLIENT_MODEL": MODEL,
            "OPENAI_API_KEY": server.key, **({"HF_HUB_OFFLINE": "1"} if is_hub_offline else {}), "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LANGSMITH_TRACING": "false", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "TERM": "dumb",
            "COLUMNS": "200", "NO_COLOR": "1", **(variables or {}),
        },
    )  # fmt: skip
    assert result.returncode == 0, f"{result.stdout[-6000:]}\n{result.stderr[-6000:]}"
    return result.stdout


@pytest.mark.parametrize("name", ["openai", "langchain", "litellm", "instructor", "anthropic"])
def test_packages_get_what_they_ask_for(name: str, server: Server, tmp_path: Path) -> None:
    run("packages", "python", PROGRAMS / f"{name}_client.py", server=server, cwd=tmp_path)


def test_openapi_document_is_valid(server: Server, tmp_path: Path) -> None:
    run("openapi", "python", PROGRAMS / "openapi_document.py", server=server, cwd=tmp_path)


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """The model's folder, beside the program that reads its tokenizer, by a relative path."""
    shutil.copytree(MODEL_DIR, tmp_path / "tiny-chat")
    return "./tiny-chat"


def test_aiperf_measures_a_hundred_streams(server: Server, tokenizer: str, tmp_path: Path) -> None:
    run(
        "aiperf", "aiperf", "profile", "--model", MODEL, "--url", server.url.removesuffix("/v1"),
        "--endpoint-type", "chat", "--api-key", server.key, "--tokenizer", tokenizer,
        "--streaming", "--concurrency", "10", "--request-count", str(NUM_REQUESTS),
        "--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "16", "--ui", "none",
        server=server, cwd=tmp_path, is_hub_offline=False,  # it takes a folder for the name of a repository otherwise
    )  # fmt: skip
    (found,) = (tmp_path / "artifacts").rglob("profile_export_aiperf.json")
    report = json.loads(found.read_text())
    assert report["request_count"]["avg"] == NUM_REQUESTS
    assert report["time_to_first_token"]["p50"] > 0
    assert not report.get("error_summary")


def test_guidellm_measures_streams(server: Server, tokenizer: str, tmp_path: Path) -> None:
    before = server.count_answer_tokens()
    run(
        "guidellm", "guidellm", "run",
        "--backend", f"kind=openai_http,target={server.url.removesuffix('/v1')},model={MODEL},api_key={server.key}",
        "--tokenizer", f"kind=hf_auto,model={tokenizer}", "--profile", "kind=concurrent,streams=8",
        "--constraint", f"kind=max_requests,count={NUM_REQUESTS}",
        "--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={NUM_OUTPUT_TOKENS}",
        "--output", "kind=json,path=report.json", "--disable-console",
        server=server, cwd=tmp_path,
        # It begins a process for each stream otherwise, which import PyTorch all at once.
        variables={"GUIDELLM__MAX_WORKER_PROCESSES": "1"},
    )  # fmt: skip
    (benchmark,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    # Its `metrics.request_totals` leave requests out that began after the end of the one whose report came last
    # (0.8.1: benchmark/schemas/metrics.py, GenerativeMetrics.compile, line 1255; the end is the `completed_at` of that
    # report: scheduler/constraints/constraint.py, constraint_stop_time, line 67). Reports of several processes come in
    # any order: of 100 that were answered it told 98 so once, and none that failed or was cut. These are all of them:
    assert benchmark["scheduler_metrics"]["requests_made"] == {
        "successful": NUM_REQUESTS, "errored": 0, "incomplete": 0, "total": NUM_REQUESTS,
    }  # fmt: skip
    answers = benchmark["requests"]["successful"]
    assert [each["output_tokens"] for each in answers] == [NUM_OUTPUT_TOKENS] * NUM_REQUESTS
    assert server.count_answer_tokens() - before == NUM_REQUESTS * NUM_OUTPUT_TOKENS


def test_vllm_bench_serve_measures_streams(server: Server, tokenizer: str, tmp_path: Path) -> None:
    run(
        "vllm", "python", PROGRAMS / "vllm_bench.py", "--backend", "openai-chat",
        "--base-url", server.url.removesuffix("/v1"), "--endpoint", "/v1/chat/completions",
        "--model", MODEL, "--tokenizer", tokenizer, "--dataset-name", "random", "--num-prompts", str(NUM_REQUESTS),
        "--random-input-len", "64", "--random-output-len", "16", "--max-concurrency", "10",
        "--save-result", "--result-filename", "report.json",
        server=server, cwd=tmp_path,
    )  # fmt: skip
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["completed"], report.get("failed", 0)) == (NUM_REQUESTS, 0)
    assert report["total_output_tokens"] > 0

"""The calls are those that vLLM's own parsers find in the same texts.

vLLM brings a PyTorch of its own, so it is asked in an environment of its own: `make test-clients CLIENTS=vllm` makes it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .corpus import CASES, TOOLS, VALUES, WRITERS
from .test_tool_parsers import calls_of, run

PYTHON = Path(os.environ.get("CLIENT_ENVIRONMENTS", "."), "vllm", "bin", "python")
pytestmark = pytest.mark.clients
KNOWN_DIFFERENCES = {
    "[TOOL_CALLS]now[CALL_ID]abc123xyz[ARGS]{}": "vLLM takes the id for a part of the name",
    '[TOOL_CALLS][{"name": 1}]': "vLLM returns a call without a name",
}
HAVE_NO_PARSER = {"openai"}
"""vLLM reads gpt-oss with openai-harmony, which test_harmony_oracle.py asks itself."""


def random_cases(num: int) -> list[tuple[str, str]]:
    """Further texts of one call, whose arguments are put together anew."""
    rng = random.Random(1)
    known: dict[str, list[Any]] = {}
    for value in VALUES:
        for key, each in value.items():
            known.setdefault(key, []).append(each)
    cases = []
    for _ in range(num):
        name = rng.choice(sorted(WRITERS))
        keys = rng.sample(sorted(known), k=rng.randrange(len(known) + 1))
        arguments = {key: rng.choice(known[key]) for key in keys}
        cases.append((name, WRITERS[name]("get_weather", arguments)))
    return cases


def test_calls_are_those_of_vllm() -> None:
    cases = [
        (name, case.text)
        for name, texts in CASES.items()
        for case in texts
        if name not in HAVE_NO_PARSER and case.text not in KNOWN_DIFFERENCES
    ]
    cases += random_cases(500)
    assert PYTHON.exists(), f"no {PYTHON}: run `make test-clients CLIENTS=vllm`"
    answer = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("vllm_oracle.py"))],
        input=json.dumps({"tools": TOOLS, "cases": cases}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert answer.returncode == 0, answer.stderr[-6000:]
    theirs = json.loads(answer.stdout.strip().rsplit("\n", 1)[-1])
    for (name, text), found in zip(cases, theirs, strict=True):
        assert calls_of(run(name, [text])) == [tuple(each) for each in found], (name, text)

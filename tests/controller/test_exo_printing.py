"""What the vendor's `exo` prints of a refusal: one headline and a list, nothing twice.

`printed` follows `formatError` of its `cmd/root.go`. Where EXOSCALE_CLI names the program itself, it
is run, and must print the same.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from exo_inference.state_dir import StateDir
from tests.controller.conftest import Controller
from tests.controller.fakes import GPU_FAMILIES, FakePlatform

BINARY = os.environ.get("EXOSCALE_CLI")
MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"
ENUMERATION = "does not have a value in the enumeration "


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    state = StateDir(tmp_path_factory.mktemp("printing") / "state")
    made = Controller(state, platform=FakePlatform(families=GPU_FAMILIES))
    with made.running():
        made.create_model(MINISTRAL)
        yield made


def printed(status: int, problem: dict[str, Any]) -> str:
    """Return the lines that `exo` makes of a problem with a title."""
    lead = problem["detail"] or problem["title"]
    lines = [f"error: {HTTPStatus(status).phrase}: {problem['title']}: {lead}"]
    for entry in problem.get("errors", []):
        detail = entry["detail"]
        if detail.startswith(ENUMERATION):
            values = json.loads(detail.removeprefix(ENUMERATION))
            detail = f"invalid value; valid values are: {', '.join(values)}"
        field = re.search(r"\$\['([^']+)'\]", entry.get("location", ""))
        lines.append(f"  - --{field[1]}: {detail}" if field else f"  - {detail}")
    return "\n".join(lines)


def refuse(controller: Controller, *flags: str, name: str = "m", gpus: int = 1) -> str:
    """Create a deployment that is refused, and return what `exo` prints."""
    body = {
        "name": name,
        "gpu-type": "gpua5000",
        "gpu-count": gpus,
        "replicas": 1,
        "model": {"name": MINISTRAL},
        "inference-engine-parameters": list(flags),
    }
    answer = controller.call("POST", "/v2/ai/deployment", json=body)
    assert answer.status_code in (400, 412)
    return printed(answer.status_code, answer.json())


CASES = [
    pytest.param((), {}, id="memory"),
    pytest.param(("--max-modle-len=4096",), {}, id="one flag"),
    pytest.param(("--max-modle-len=4096", "--max-num-seqs=many"), {}, id="two flags"),
    pytest.param((), {"name": "No", "gpus": 9}, id="name, heads and capacity"),
]


def test_memory_is_one_sentence_and_a_list_of_ways_out(controller: Controller) -> None:
    headline, *ways_out = refuse(controller).splitlines()
    assert headline.startswith(
        f"error: Precondition Failed: Deployment not created: {MINISTRAL} does not fit 1 x gpua5000: "
    )
    assert headline.endswith("Any one of these makes it fit:")
    assert len(ways_out) >= 3
    assert all(re.match(r"  - --[a-z-]+=\S", way) for way in ways_out)


@pytest.mark.parametrize(("flags", "fields"), CASES)
def test_nothing_is_printed_twice(
    controller: Controller, flags: tuple[str, ...], fields: dict[str, Any]
) -> None:
    headline, *lines = refuse(controller, *flags, **fields).splitlines()
    assert lines
    assert len(set(lines)) == len(lines)
    assert not [line for line in lines if line.partition(": ")[2] in headline]


@pytest.mark.skipif(not BINARY, reason="EXOSCALE_CLI names no exo binary of Exoscale")
@pytest.mark.parametrize(("flags", "fields"), CASES)
def test_the_program_itself_prints_that(
    controller: Controller, tmp_path: Path, flags: tuple[str, ...], fields: dict[str, Any]
) -> None:
    environment = {
        "EXOSCALE_API_ENDPOINT": controller.endpoint,
        "EXOSCALE_API_KEY": controller.key,
        "EXOSCALE_API_SECRET": controller.secret,
        "EXOSCALE_ZONE": controller.zone,
        "HOME": str(tmp_path),
    }
    command = ["deployment", "create", fields.get("name", "m"), "--replicas=1"]
    command += ["--gpu-type=gpua5000", f"--gpu-count={fields.get('gpus', 1)}"]
    command += [f"--model-name={MINISTRAL}", f"--inference-engine-params={' '.join(flags)}"]
    result = subprocess.run(
        [str(BINARY), "ai", *command], capture_output=True, text=True, env=environment, timeout=60
    )
    assert result.returncode == 1
    assert refuse(controller, *flags, **fields) in result.stderr

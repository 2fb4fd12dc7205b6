"""What it costs to admit one create: processor time of a signed dry run, from the request to its answer.

The application with its real store and the local platform with simulated GPUs, in this process and without
a network: the body is read, its signature checked, the store read, flags, model and memory judged, the plan
written. 100 other deployments are stored, scaled to 0. Each create has flags of its own, so that no reading is repeated.

    python benchmarks/admission.py            # prints; fails above the limit
    python benchmarks/admission.py --write    # also replaces docs/benchmarks/admission.md
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from exo_inference.controller.http.app import create_app
from exo_inference.controller.local.server import open_context
from exo_inference.controller.settings import ControllerSettings
from exo_inference.controller.stores.base import Recording
from exo_inference.hub import source_for
from exo_inference.hub.architecture import read_directory
from exo_inference.hub.builtin import builtin_directory
from exo_inference.platforms.local import LocalPlatform, Simulation
from exo_inference.resources import (
    DeploymentSpec,
    EngineRef,
    InferenceDeployment,
    InferenceModel,
    ModelSpec,
    ObjectMeta,
    model_object_name,
)
from exo_inference.sdk.signing import Credentials, sign
from exo_inference.simulated_gpus import parse_simulated_gpus
from exo_inference.state_dir import StateDir

LIMIT_MS = 15.0
NUM_TIMES = 200
NUM_DEPLOYMENTS = 100
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "admission.md"
PATH, QUERY = "/v2/ai/deployment", (("dry-run", "dry-run"),)
CREDENTIALS = Credentials("EXObench", "secret")

SMALL, LARGE = "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-70B-Instruct"
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "the built-in model on the CPU": (
        200,
        {"model": {"name": "exo/tiny-chat"}, "gpu-type": "cpu", "gpu-count": 1},
    ),
    f"{SMALL} on one gpurtx6000pro, with flags": (
        200,
        {
            "model": {"name": SMALL},
            "gpu-type": "gpurtx6000pro",
            "gpu-count": 1,
            "inference-engine-parameters": ["--max-model-len=8192", "--kv-cache-dtype=fp8"],
        },
    ),
    "refused: six fields are wrong": (
        400,
        {
            "name": "Not A Name",
            "model": {"name": "org/nowhere"},
            "gpu-type": "gpua500",
            "gpu-count": 0,
            "replicas": 1000,
            "inference-engine-version": "0",
        },
    ),
    f"refused with ways out: {LARGE} on one gpua5000": (
        412,
        {"model": {"name": LARGE}, "gpu-type": "gpua5000", "gpu-count": 1},
    ),
}
"""What is created, and the status of the answer."""


@dataclass(frozen=True)
class Figure:
    """Processor times of one case, in milliseconds."""

    what: str
    first_ms: float
    median_ms: float
    p95_ms: float


async def measure() -> list[Figure]:
    """Time every case."""
    with tempfile.TemporaryDirectory() as folder:
        state = StateDir(Path(folder))
        state.create()
        gpus = parse_simulated_gpus("gpua5000=4,gpurtx6000pro=8")
        simulation = Simulation(gpus, 1, builtin_directory("exo/tiny-chat"), read_directory)
        here = LocalPlatform(state, simulation=simulation)
        settings = ControllerSettings(state=state)
        async with open_context(settings, platform=here, find_source=source_for) as context:
            for source in ("exo/tiny-chat", SMALL, LARGE):
                model = InferenceModel(
                    metadata=ObjectMeta(name=model_object_name(source), uid=str(uuid.uuid4())),
                    spec=ModelSpec(source=source),
                )
                await context.store.create(model, Recording())
            for number in range(NUM_DEPLOYMENTS):
                deployment = InferenceDeployment(
                    metadata=ObjectMeta(name=f"other-{number}", uid=str(uuid.uuid4())),
                    spec=DeploymentSpec(
                        model=SMALL,
                        gpu_type="gpurtx6000pro",
                        replicas=0,  # so that they leave the memory of any machine
                        engine=EngineRef(name="vllm"),
                    ),
                )
                await context.store.create(deployment, Recording())
            app = create_app(context, {CREDENTIALS.key: CREDENTIALS.secret}.get)
            return [await _time(app, what, *case) for what, case in CASES.items()]


async def _time(app: Any, what: str, status: int, body: dict[str, Any]) -> Figure:
    times = []
    for number in range(NUM_TIMES + 1):
        flags = [*body.get("inference-engine-parameters", ()), f"--seed={number}"]
        mine = {"name": "chat", **body, "inference-engine-parameters": flags}
        data = json.dumps(mine).encode()
        expires = int(time.time()) + 600
        header = sign(CREDENTIALS, "POST", PATH, QUERY, data, expires=expires)
        start = time.process_time()
        found, text = await _call(app, data, header)
        times.append(1000 * (time.process_time() - start))
        assert found == status, f"{what}: {found} {text[:500]}"
    warm = sorted(times[1:])
    return Figure(what, times[0], statistics.median(warm), warm[int(0.95 * (len(warm) - 1))])


async def _call(app: Any, body: bytes, authorization: str) -> tuple[int, str]:
    """Send one request to the application, and return status and body of its answer."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"&".join(f"{name}={value}".encode() for name, value in QUERY),
        "headers": [
            (b"authorization", authorization.encode()),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 1),
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], text.decode()


def render(figures: list[Figure], load: tuple[float, float]) -> str:
    """Return the page."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    rows = "\n".join(
        f"| {f.what} | {f.first_ms:.1f} | {f.median_ms:.1f} | {f.p95_ms:.1f} |" for f in figures
    )
    return f"""# Admission of one create

Made by `python benchmarks/admission.py --write` on {datetime.now(UTC):%Y-%m-%d}: {cpu or platform.machine()}, \
{os.cpu_count()} cores, Python {platform.python_version()}, exo-inference {version("exo-inference")}.

Processor time of the whole request, a dry run beside {NUM_DEPLOYMENTS} deployments, {NUM_TIMES} times: signature, \
body, store, judgement, answer. Ways out are many plans.
A create that is admitted must stay within {LIMIT_MS:.0f} ms. The load average was {load[0]:.1f} before and \
{load[1]:.1f} after.

| what | first, ms | median, ms | 95th percentile, ms |
| --- | ---: | ---: | ---: |
{rows}
"""


def main() -> int:
    """Measure, print, and compare with the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"replace {PAGE.name}")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    figures = asyncio.run(measure())
    text = render(figures, (load_before, os.getloadavg()[0]))
    print(text)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    admitted = [
        figure for figure, case in zip(figures, CASES.values(), strict=True) if case[0] == 200
    ]
    return int(any(figure.median_ms > LIMIT_MS for figure in admitted))


if __name__ == "__main__":
    sys.exit(main())

"""What mutated files of models cost those who ask the API meanwhile.

A controller as `up` starts it, in a process of its own; 1,000 mutated files of each kind, one after
another through `POST /v2/ai/model` with a folder as the source; and a second client, in a process of its
own as well, that asks for the list of deployments every 50 ms. It asks for ten seconds without files
first, so that what the machine does to all of them can be told from what the files do.

    python -m benchmarks.foreign_files            # prints
    python -m benchmarks.foreign_files --write    # also replaces docs/benchmarks/foreign-files.md
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import requests
from exoscale_auth import ExoscaleV2Auth

from benchmarks.foreign_files.answer_times import ASK_SECONDS, Answers, asked
from benchmarks.foreign_files.mutations import KINDS, mutated, passes_first_parser, write_seed
from exo_inference.local_settings import ensure_credentials, prepare_settings, save_settings
from exo_inference.state_dir import StateDir

COUNT = 1000
IDLE_SECONDS = 10.0
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "foreign-files.md"


@dataclass(frozen=True)
class Api:
    """A controller in a process of its own."""

    url: str
    key: str
    secret: str
    pid: int

    def call(self, method: str, path: str, body: object = None) -> requests.Response:
        """Send one signed request."""
        auth = ExoscaleV2Auth(self.key, self.secret)
        return requests.request(method, f"{self.url}{path}", json=body, auth=auth, timeout=60)

    def asked(self) -> contextlib.AbstractContextManager[Answers]:
        """Ask for the list of deployments until the block ends."""
        return asked(self.url, self.key, self.secret, self.pid)


@dataclass(frozen=True)
class Outcome:
    """What became of the files of one kind."""

    name: str
    num_past_parser: int
    outcomes: Counter[str]
    answers: Answers


@contextlib.contextmanager
def running_controller(directory: Path) -> Iterator[Api]:
    """Run a controller on a new state directory."""
    state = StateDir(directory / "state")
    state.create()
    settings = prepare_settings(state).settings
    save_settings(state, settings)
    credentials = ensure_credentials(state, settings)
    with (directory / "controller.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "exo_inference.controller", "--state-dir", str(state.root)],
            stderr=log,
        )
    url = f"http://127.0.0.1:{settings.port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(requests.ConnectionError):
                requests.get(f"{url}/v2/zone", timeout=5)
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((directory / "controller.log").read_text())
            time.sleep(0.1)
        yield Api(url, credentials.key, credentials.secret, process.pid)
    finally:
        process.terminate()
        process.wait(30)


def run_kind(api: Api, directory: Path, name: str, count: int, *, seed: int = 7) -> Outcome:
    """Create a model from every mutated file of one kind; see what becomes of those that are taken."""
    write_seed(directory)
    right = (directory / name).read_bytes()
    outcomes: Counter[str] = Counter()
    num_past = 0
    taken: list[str] = []
    with api.asked() as answers:
        for number, content in enumerate(mutated(right, KINDS[name], count, seed=seed)):
            num_past += passes_first_parser(name, content)
            model = directory / str(number)
            write_seed(model)
            (model / name).write_bytes(content)
            answer = api.call("POST", "/v2/ai/model", {"name": model.as_uri()})
            if answer.status_code == 200:
                taken.append(answer.json()["reference"]["id"])
            else:
                is_refusal = answer.status_code == 412
                outcomes["refused" if is_refusal else f"status {answer.status_code}"] += 1
        outcomes.update(_settle(api, uid) for uid in taken)
    return Outcome(name, num_past, outcomes, answers)


def _settle(api: Api, uid: str) -> str:
    """Wait until a model is ready or has failed, and delete it; return its state."""
    path = f"/v2/ai/model/{uid}"
    deadline = time.monotonic() + 60
    state = None
    while state not in ("ready", "error") and time.monotonic() < deadline:
        state = api.call("GET", path).json().get("state")
        time.sleep(0.005)
    api.call("DELETE", path)
    return str(state)


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    """Run everything, print the page, and replace it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=COUNT, help="files of each kind")
    parser.add_argument("--write", action="store_true", help=f"replace {PAGE.name}")
    options = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as name, running_controller(Path(name)) as api:
        with api.asked() as idle:
            time.sleep(IDLE_SECONDS)
        found = [Outcome("none", 0, Counter(), idle)]
        found += [
            run_kind(api, Path(name) / str(number), kind, options.count)
            for number, kind in enumerate(KINDS)
        ]
    failures = [text for each in found for text in each.answers.failures]
    if failures:
        raise SystemExit(f"the API failed {len(failures)} times: {failures[0]}")
    page = write_page(found, options.count, (load[0], os.getloadavg()[0]))
    print(page)
    if options.write:
        PAGE.write_text(page, encoding="utf-8")


def write_page(found: list[Outcome], count: int, load: tuple[float, float]) -> str:
    """Return the page of one run; the load average is that before and after it."""
    outcomes = "\n".join(
        f"| `{each.name}` | {each.num_past_parser} | {each.outcomes['refused']} | "
        f"{each.outcomes['error']} | {each.outcomes['ready']} | {_others(each)} |"
        for each in found[1:]
    )
    times = "\n".join(
        f"| {each.name if each is found[0] else f'`{each.name}`'} | {len(each.answers.seconds)} | "
        f"{_milliseconds(each.answers.seconds)} | {_milliseconds(each.answers.late_seconds)} |"
        for each in found
    )
    return f"""# What mutated files cost others

{count} mutated files of each kind, half of them changed in their bytes and half in their grammar, become
models one after another through `POST /v2/ai/model`. Controller and clients are processes of one machine.

| file | past its first parser | refused | failed later | ready | anything else |
| --- | --- | --- | --- | --- | --- |
{outcomes}

A file is ready where what was changed is a name or a number that another model could have.

Meanwhile a second client asks for the list of deployments every {ASK_SECONDS * 1000:.0f} ms, each time over a new
connection. What it waits has two parts: how long an answer takes, and how late the machine lets a process
run that has only slept, which no server can better.

| files sent | asked | answer: median | p99 | slowest | late after a sleep: median | p99 | most |
| --- | --- | --- | --- | --- | --- | --- | --- |
{times}

Why no file holds up the API: [what files of strangers may do](../concepts/foreign-files.md).

* Machine: {os.cpu_count()} cores, Linux {platform.release()}
* Load average before and after the run: {load[0]:.1f}, {load[1]:.1f}
* Versions: Python {platform.python_version()}
* Date: {datetime.now(UTC).date()}
* Command: `python -m benchmarks.foreign_files --write`
"""


def _milliseconds(seconds: list[float]) -> str:
    """Return median, p99 and the most as cells of a table."""
    cells = (percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds))
    return " | ".join(f"{1000 * each:.1f} ms" for each in cells)


def _others(outcome: Outcome) -> int:
    return outcome.outcomes.total() - sum(
        outcome.outcomes[name] for name in ("refused", "error", "ready")
    )


if __name__ == "__main__":
    main()

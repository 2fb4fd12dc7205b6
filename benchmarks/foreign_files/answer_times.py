"""`python -m benchmarks.foreign_files.answer_times URL`: asks an API every 50 ms until stdin ends.

A process of its own, because the one that makes files and sends them holds up its own threads. Reads key
and secret from the first line of stdin, prints what it found in JSON, and how late the machine let it
run when it had only slept: no answer can be more punctual than that.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import requests
from exoscale_auth import ExoscaleV2Auth

ASK_SECONDS = 0.05


@dataclass
class Answers:
    """What an API answered.

    Attributes:
        seconds: that each answer took, from when it was due to be asked for.
        late_seconds: how much later than asked each sleep ended.
        failures: texts of answers that were none.
    """

    seconds: list[float] = field(default_factory=list)
    late_seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@contextlib.contextmanager
def asked(url: str, key: str, secret: str) -> Iterator[Answers]:
    """Ask until the block ends; the answers are there after it."""
    found = Answers()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.foreign_files.answer_times", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None, "made with pipes"
        process.stdin.write(json.dumps([key, secret]) + "\n")
        process.stdin.flush()
        yield found
        output, _ = process.communicate(timeout=90)
    finally:
        process.kill()
        process.wait()
    for name, values in json.loads(output).items():
        setattr(found, name, values)


def main() -> None:
    """Ask; see the module."""
    key, secret = json.loads(sys.stdin.readline())
    auth = ExoscaleV2Auth(key, secret)
    found = Answers()
    due = time.perf_counter() + ASK_SECONDS
    while True:
        wait = due - time.perf_counter()
        if select.select([sys.stdin], [], [], max(0.0, wait))[0]:
            break
        if wait > 0:
            found.late_seconds.append(time.perf_counter() - due)
        else:  # the answer before took longer than that
            due = time.perf_counter()
        answer = requests.get(f"{sys.argv[1]}/v2/ai/deployment", auth=auth, timeout=60)
        found.seconds.append(time.perf_counter() - due)
        if answer.status_code != requests.codes.ok:
            found.failures.append(answer.text[:200])
        due += ASK_SECONDS
    print(json.dumps(vars(found)))


if __name__ == "__main__":
    main()

"""`python -m benchmarks.foreign_files.answer_times URL PID`: asks an API every 50 ms until stdin ends.

A process of its own, because the one that makes files and sends them holds up its own threads. Reads key
and secret from the first line of stdin, prints what it found in JSON, and how late the machine let it
run when it had only slept: no answer can be more punctual than that. What other programs on the machine do is
not in the processor time that the API's own process took meanwhile; what holds up its answers by computing is.
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
        processor_seconds: that the API's process, all its threads, computed until each answer was there.
        failures: texts of answers that were none.
    """

    seconds: list[float] = field(default_factory=list)
    late_seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@contextlib.contextmanager
def asked(url: str, key: str, secret: str, pid: int) -> Iterator[Answers]:
    """Ask the API of a process until the block ends; the answers are there after it."""
    found = Answers()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.foreign_files.answer_times", url, str(pid)],
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


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process; see clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


def main() -> None:
    """Ask; see the module."""
    key, secret = json.loads(sys.stdin.readline())
    auth = ExoscaleV2Auth(key, secret)
    found, pid = Answers(), int(sys.argv[2])
    due = time.perf_counter() + ASK_SECONDS
    while True:
        wait = due - time.perf_counter()
        if select.select([sys.stdin], [], [], max(0.0, wait))[0]:
            break
        if wait > 0:
            found.late_seconds.append(time.perf_counter() - due)
        else:  # the answer before took longer than that
            due = time.perf_counter()
        before = processor_seconds(pid)
        answer = requests.get(f"{sys.argv[1]}/v2/ai/deployment", auth=auth, timeout=60)
        found.seconds.append(time.perf_counter() - due)
        found.processor_seconds.append(processor_seconds(pid) - before)
        if answer.status_code != requests.codes.ok:
            found.failures.append(answer.text[:200])
        due += ASK_SECONDS
    print(json.dumps(vars(found)))


if __name__ == "__main__":
    main()

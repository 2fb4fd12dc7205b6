"""How long a start takes, from `exec` to the first 200 of /health, and what the engine then holds in memory.

Each round starts `exo-engine serve` anew, waits until it is ready, and has a prompt answered, so that a part of
the cache is used. Memory is what all its processes have in RAM after the answer; a file that several of them
have mapped, as PyTorch's libraries, counts once, with the process that has most of it. The bound is the
weights, what the prompt takes of the cache, and 400 MB. Beside it stands how many processor seconds the
start took, which others on the machine change less than the time by the clock.

    python benchmarks/start.py --model ../../exo_inference/hub/builtin_models/tiny-chat --rounds 5
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_READY_SECONDS, _BEYOND_MB = 1.5, 400.0
_PROMPT_TOKENS, _MOST_SECONDS = 400, 120.0


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_MOST_SECONDS)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        is_json = response.headers.get_content_type() == "application/json"
        return response.status, json.loads(text) if is_json and text else None
    finally:
        connection.close()


def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    limit = time.monotonic() + _MOST_SECONDS
    while time.monotonic() < limit and process.poll() is None:
        try:
            if _ask(port, "GET", "/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.005)
    raise SystemExit(f"the engine was not ready after {_MOST_SECONDS:g} s, or has ended")


def _family(pid: int) -> list[int]:
    """Return a process and all that it started, and those started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [pid, *(each for child in children for each in _family(int(child)))]


def _held_mb(pids: list[int]) -> tuple[float, float]:
    """Return what processes have in RAM of their own, and of files."""
    own, files = 0, dict[str, int]()
    for pid in pids:
        by_file: dict[str, int] = {}
        path = ""
        for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
            words = line.split()
            if not words[0].endswith(":"):  # begins a mapping
                path = words[5] if len(words) > 5 and words[5].startswith("/") else ""
            elif words[0] == "Rss:":
                by_file[path] = by_file.get(path, 0) + int(words[1])
            elif words[0] == "Anonymous:" and path:  # pages of a file that were changed
                by_file[path] -= int(words[1])
                by_file[""] = by_file.get("", 0) + int(words[1])
        own += by_file.pop("", 0)
        files = {each: max(files.get(each, 0), size) for each, size in {**files, **by_file}.items()}
    return 1.024e-3 * own, 1.024e-3 * sum(files.values())


def _processor_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


def _round(model: Path, more: list[str]) -> dict[str, float]:
    port = _free_port()
    program = Path(sys.executable).with_name("exo-engine")
    command = [str(program), "serve", str(model), "--port", str(port)]
    command += ["--served-model-name", "model", "--log-level", "warning", *more]
    begun = time.monotonic()
    process = subprocess.Popen(command)
    try:
        _wait_ready(process, port)
        ready = time.monotonic() - begun
        seconds = sum(map(_processor_seconds, _family(process.pid)))
        body = {"model": "model", "prompt": [1] * _PROMPT_TOKENS, "max_tokens": 8}
        status, answer = _ask(port, "POST", "/v1/completions", body)
        if status != 200:
            raise SystemExit(f"a completion was answered with {status}: {answer}")
        measured = _ask(port, "GET", "/measurements")[1]
        own, files = _held_mb(_family(process.pid))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    cache = (_PROMPT_TOKENS + 8) * measured["kv_bytes_per_token"] / 1e6
    weights = measured["weights_bytes"] / 1e6
    return {
        "ready_seconds": ready,
        "processor_seconds": seconds,
        "weights_mb": weights,
        "cache_in_use_mb": cache,
        "own_mb": own,
        "files_mb": files,
        "beyond_weights_and_cache_mb": own + files - weights - cache,
    }


def main() -> int:
    """Print the rounds' medians; the exit code is 1 where a bound is passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    arguments, more = parser.parse_known_args()
    load = os.getloadavg()[0]
    rounds = [_round(arguments.model, more) for _ in range(arguments.rounds)]
    medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    bounds = {"ready_seconds": _READY_SECONDS, "beyond_weights_and_cache_mb": _BEYOND_MB}
    report = {
        "model": str(arguments.model),
        "load_average": round(load, 1),
        "medians": {key: round(value, 2) for key, value in medians.items()},
        "bounds": bounds,
    }
    print(json.dumps(report, indent=2))
    return int(any(medians[key] > bound for key, bound in bounds.items()))


if __name__ == "__main__":
    sys.exit(main())

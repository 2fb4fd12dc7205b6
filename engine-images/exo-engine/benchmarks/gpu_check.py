"""`make gpu-check`: prove the engine on CUDA, then measure it. At most 10 minutes, whatever fails on the way.

It needs torch, numpy, safetensors and Triton, a CUDA device, and nothing from the network: models are random
and made on the device. The device is named (`gpu_probe.py`), and each part run (`gpu_parts.py`), in a process
with a time limit of its own. First, side by side, what takes no times: attention against float64, the engine against
itself on the CPU, its settings (16 bits, small caches and weights, guesses). Then one after the other, the most valuable
first: what the device can do, products with FP8 and 4-bit codes, the shape of Llama 3.1 8B, plain, in FP8 (and its
cache), in INT4 and with fixed sums, that of Qwen3 0.6B, `transformers`. After each, what is known is written to --output;
the tables at the end are those of the page.

    make gpu-check OUTPUT=docs/benchmarks/gpu.json           on a machine with a GPU
    make gpu-check ARGS="--device cpu --small"               try the script itself; ends within 100 minutes

Exit status: 0 all equal and measured, or refused by the engine on such a device; 1 something differs or failed,
69 no CUDA device that answers, or no package.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from gpu.measured import result, tables

EXIT_UNAVAILABLE = 69
_REQUIRED = ("torch", "numpy", "safetensors", "triton", "exo_engine")
_PARTS = {
    "kernels": 80,
    "equality": 110,
    "variants": 90,
    "limits": 20,
    "matrices": 60,
    "llama-3.1-8b": 105,
    "llama-3.1-8b-fp8": 60,
    "qwen3-0.6b": 60,
    "llama-3.1-8b-batch-invariant": 50,
    "transformers": 60,
    "llama-3.1-8b-int4": 60,
}
"""Seconds that each part may take, if so many are left of those for all: few parts take theirs, and the last ones are
worth the least."""
_SIDE_BY_SIDE = ("kernels", "equality", "variants")
"""Parts that take no times, and wait most of theirs for a compiler."""
_PROBE_SECONDS = 60
"""For naming the device: what imports torch from a cold disk, and starts a driver."""
_SECONDS = 590.0
"""For all, the device's name included; ten minutes with what ends a process that hangs in a driver."""
_CPU_PATIENCE = 10.0
"""Multiplies all of these on a CPU, whose kernels are interpreted; a GPU's limits are its own."""
_RUNNING: list[subprocess.Popen[bytes]] = []
_STARTING = threading.RLock()
"""Held while a part is started, or taken for ended; a signal comes to the thread that may hold it."""
_SCRIPT, _PROBE = (Path(__file__).with_name(f"gpu_{name}.py") for name in ("parts", "probe"))


def main() -> int:
    """Run all parts and return the exit status."""
    started = time.monotonic()
    arguments = _parse()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: _end_all(received))
    report: dict[str, Any] = {"environment": {"device": arguments.device}, "parts": {}}
    has_figures = arguments.output.exists()
    if not has_figures:
        _write(report, arguments.output)  # where nothing can be written, that is told at once
    report["environment"] = _probe(arguments)
    report["wall_seconds"] = round(time.monotonic() - started, 1)
    if not has_figures or "problem" not in report["environment"]:  # none are lost for no device
        _write(report, arguments.output)
    if problem := report["environment"].get("problem"):
        print(
            f"gpu-check: error: {problem}\nTo try the script itself without a GPU: --device cpu --small"
        )
        return EXIT_UNAVAILABLE
    print(json.dumps(report["environment"]))
    told = f"{arguments.patience:g} times its seconds, all parts {arguments.time_limit_seconds:g} s"
    print(f"each part may take {told}", flush=True)
    for part, found in _run_all(list(arguments.parts or _PARTS), arguments, started):
        report["parts"][part] = found
        report["parts"] = {
            name: report["parts"][name] for name in _PARTS if name in report["parts"]
        }
        report["wall_seconds"] = round(time.monotonic() - started, 1)
        _print_part(part, found)
        _write(report, arguments.output)
    _add_shares(report["parts"])
    _write(report, arguments.output)
    print("\n".join(tables(report["parts"])))
    failed = [part for part, found in report["parts"].items() if not found["passed"]]
    print(f"\nall figures are in {arguments.output}")
    print(f"{'FAILED: ' + ', '.join(failed) if failed else 'passed'} in {report['wall_seconds']} s")
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models instead of real shapes")
    parser.add_argument(
        "--output", type=Path, default=Path("gpu-check.json"), help="figures as JSON (%(default)s)"
    )
    parser.add_argument("--parts", nargs="+", choices=_PARTS, help="only these")
    parser.add_argument(
        "--time-limit-seconds",
        type=float,
        help=f"for all together; {_SECONDS:.0f}, on a CPU {_SECONDS * _CPU_PATIENCE:.0f} if not given",
    )
    parser.add_argument(
        "--patience",
        type=float,
        help=f"multiplies the parts' limits; 1, on a CPU {_CPU_PATIENCE:.0f} if not given",
    )
    arguments = parser.parse_args()
    own = 1.0 if arguments.device == "cuda" else _CPU_PATIENCE
    if arguments.patience is None:
        arguments.patience = own
    if arguments.time_limit_seconds is None:
        arguments.time_limit_seconds = _SECONDS * own
    return arguments


def _probe(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the device is, or `problem`: what is missing, or that it does not answer; nothing is imported here."""
    known = {"device": arguments.device}
    missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        return {**known, "problem": f"these Python packages are missing: {', '.join(missing)}"}
    limit = min(_PROBE_SECONDS * max(1.0, arguments.patience), arguments.time_limit_seconds)
    problem, text = _call(_PROBE, ["--device", arguments.device], dict(os.environ), limit)
    if problem is None and not _rows(text):
        problem = "ended without a word"
    if problem is not None:
        return {
            **known,
            "problem": f"what asks the {arguments.device} device for its name {problem}",
        }
    return _rows(text)[-1]


def _run_all(
    parts: list[str], arguments: argparse.Namespace, started: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run parts, and yield each one's name and what it found when it has ended."""

    def run(part: str) -> tuple[str, dict[str, Any]]:
        left = arguments.time_limit_seconds - (time.monotonic() - started)
        return part, _run(part, arguments, min(_PARTS[part] * arguments.patience, left))

    with ThreadPoolExecutor(max(1, min(len(_SIDE_BY_SIDE), (os.cpu_count() or 1) // 2))) as pool:
        together = [pool.submit(run, part) for part in parts if part in _SIDE_BY_SIDE]
        for future in as_completed(together):
            yield future.result()
    yield from (run(part) for part in parts if part not in _SIDE_BY_SIDE)


def _run(part: str, arguments: argparse.Namespace, limit: float) -> dict[str, Any]:
    """Run one part in a process of its own; what it has printed counts whatever became of it."""
    if limit <= 0:
        return {"passed": False, "problem": "there was no time left", "rows": []}
    options = [part, "--device", arguments.device, *(["--small"] if arguments.small else [])]
    environment = dict(os.environ)
    if arguments.device == "cpu" and part in ("kernels", "matrices"):
        environment["TRITON_INTERPRET"] = "1"
    begun = time.monotonic()
    problem, text = _call(_SCRIPT, options, environment, limit)
    rows = _rows(text)
    wrong = sum(1 for row in rows if row.get("ok") is False)
    if problem is None and wrong:
        problem = f"{wrong} of {len(rows)} comparisons do not hold"
    if problem is None and not rows:
        problem = "ended without a comparison or a figure"
    seconds = round(time.monotonic() - begun, 1)
    found = {"passed": problem is None, "problem": problem, "seconds": seconds, "rows": rows}
    refused = next((row["refused"] for row in rows if "refused" in row), None)
    return found if refused is None else {**found, "refused": refused}


def _call(
    script: Path, options: list[str], environment: dict[str, str], limit: float
) -> tuple[str | None, str]:
    """Run a script and end it after so many seconds; return what went wrong, and what it had printed."""
    # In files: a process that it has left behind would keep the end of a pipe open.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with _STARTING:
            process = subprocess.Popen(
                [sys.executable, str(script), *options],
                stdout=output,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
            _RUNNING.append(process)
        try:
            code = process.wait(timeout=limit)
            problem = f"ended with {code}: {_read(errors).strip()[-1500:]}" if code else None
        except subprocess.TimeoutExpired:
            problem = f"was stopped after its {limit:.0f} s"
        finally:
            _kill_session(process)
            with _STARTING:
                _RUNNING.remove(process)
        return problem, _read(output)


def _end_all(received: int) -> None:
    """End all parts that run, and then this process, as a signal asks for; no other one begins meanwhile."""
    with _STARTING:
        for process in _RUNNING:
            _kill_session(process)
        os._exit(128 + received)  # threads would wait to be joined


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """End a part and what it has started, and do not wait long for what hangs in a driver."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _rows(text: str) -> list[dict[str, Any]]:
    """Return what is a row of what a part has printed; the last line may be cut off, and others be a library's."""
    rows = []
    for line in text.splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                rows.append(row)
    return rows


def _add_shares(parts: dict[str, Any]) -> None:
    """Say of each step which share of the device's copy rate its bytes would need, and what fixed sums cost there."""
    limits = {row["limit"]: row for row in parts.get("limits", {}).get("rows", ())}
    copy = limits.get("copy", {}).get("bytes_per_second")
    for found in parts.values():
        for row in found["rows"]:
            if copy and "bytes_read" in row:
                row["share_of_roofline"] = _round(row["bytes_read"] / copy / row["step_seconds"])
    plain, fixed = (
        {row["sequences"]: row for row in parts.get(name, {}).get("rows", ()) if "sequences" in row}
        for name in ("llama-3.1-8b", "llama-3.1-8b-batch-invariant")
    )
    for count, row in fixed.items():
        if count in plain:
            kept = row["tokens_per_second"] / plain[count]["tokens_per_second"]
            row |= {"cost_at": count, "lost_share": _round(1 - kept)}
    engine, others = (
        {row.get("model", row.get("transformers")): row for row in part.get("rows", ()) if "mixed_requests" in row}
        for part in (parts.get("llama-3.1-8b", {}), parts.get("transformers", {}))
    )  # fmt: skip
    for name, row in engine.items():
        if name in others:
            row["times_transformers"] = _round(others[name]["seconds"] / row["seconds"])


def _round(share: float) -> float:
    """Keep three digits, however small it is."""
    return float(f"{share:.3g}")


def _print_part(part: str, found: dict[str, Any]) -> None:
    print(f"== {part}: {result(found)} in {found.get('seconds', 0)} s")
    if found["problem"]:
        print(f"gpu-check: error: {part} {found['problem']}")
    for row in found["rows"]:
        if row.get("ok") is not True:
            figures = (
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            )
            print("   " + ", ".join(figures))
    sys.stdout.flush()


def _write(report: dict[str, Any], output: Path) -> None:
    """Write what is known so far; who stops it meanwhile keeps what was known before."""
    output.parent.mkdir(parents=True, exist_ok=True)
    draft = output.with_name(output.name + ".new")
    draft.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    draft.replace(output)


if __name__ == "__main__":
    sys.exit(main())

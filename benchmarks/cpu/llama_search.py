"""Which flags make llama.cpp fastest on this machine: those that change its speed, tried in turns, one kind at a time.

    python -m benchmarks.cpu.llama_search --models s m          # prints a table; half an hour on a quiet machine

The first value of each flag is what `llama_cpp.py` has; with it all others are as there, too. A setting that is not
the first is worth having where its median is more than 3 % above the first's.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu import llama_cpp
from benchmarks.cpu.contestants import THREADS, LlamaCpp
from benchmarks.cpu.http_load import Client
from benchmarks.cpu.models import SIZES, config_of
from benchmarks.cpu.processes import await_ready, started, stop_on_signals
from benchmarks.cpu.quiet import Watch
from benchmarks.cpu.run import FAILURES
from benchmarks.cpu.shapes import PROMPT_TOKENS
from scripts.free_ports import free_port

_OUTPUT = 64
"""Tokens of each decoded sequence."""
_REQUESTS = 32
"""Of the load over HTTP."""


@dataclass(frozen=True)
class Setting:
    """What is tried instead of the flags in `llama_cpp.py`.

    Attributes:
        name: for the table.
        replaced: words by the flag that they follow; None takes a flag without words away.
        added: words behind all others.
    """

    name: str
    replaced: Mapping[str, str | None]
    added: tuple[str, ...] = ()

    def applied(self, command: Sequence[str]) -> list[str]:
        """Return a command with these words."""
        words = list(command)
        for flag, value in self.replaced.items():
            at = words.index(flag)
            words[at : at + 2 if value is not None else at + 1] = (
                [] if value is None else [flag, value]
            )
        return [*words, *self.added]


KINDS = ("prompt", "decode", "server")
USED = Setting("as used", {})


def settings(kind: str, threads: int) -> list[Setting]:
    """Return what is tried for `prompt`, `decode` or `server`, what is used first."""
    fewer = str(max(1, threads // 2))
    flash = [Setting(f"-fa {state}", {}, ("-fa", state)) for state in ("on", "off")]
    tried = [USED, Setting("half of the threads", {"-t": fewer})]
    if kind == "prompt":
        tried += [Setting(f"-ub {size}", {}, ("-ub", size)) for size in ("128", "256")]
        return tried + flash
    tried[1] = Setting("half of the threads", {"-t": fewer, "-tb": fewer})
    tried += flash
    if kind == "decode":
        return [*tried, Setting("a cache for all", {}, ("-kvu",))]
    tried += [Setting(f"-ub {size}", {}, ("-ub", size)) for size in ("128", "2048")]
    tried += [Setting("-np 16", {"-np": "16"})]
    return [*tried, Setting("a cache for each", {"--kv-unified": None, "-c": str(32 * 1024)})]


def measure(
    kind: str, setting: Setting, file: Path, threads: int, vocab_size: int, watch: Watch
) -> float:
    """Return tokens per second; `watch` is told of what is started.

    Raises:
        FAILURES: llama.cpp refused the setting, or failed.
    """
    if kind == "server":
        return _serve(setting, file, vocab_size, watch)
    if kind == "prompt":
        read, command = llama_cpp.prompt_speed, llama_cpp.prompt_command(file, 512, threads)
    else:
        read = llama_cpp.decode_speed
        command = llama_cpp.decode_command(file, 8, PROMPT_TOKENS, _OUTPUT, threads)
    done = subprocess.run(setting.applied(command), check=True, capture_output=True, text=True)
    return read(done.stdout)


def _serve(setting: Setting, file: Path, vocab_size: int, watch: Watch) -> float:
    port = free_port()
    server = LlamaCpp(file.stem, "").server(file.parent, port)
    assert server is not None, "llama.cpp has one"
    client = Client(f"http://127.0.0.1:{port}/v1", vocab_size)
    with (
        tempfile.TemporaryDirectory() as folder,
        started(setting.applied(server[0]), Path(folder) / "log", watch) as process,
    ):
        await_ready(port, process)
        load: Any = client.run(lambda session: client.load(session, _REQUESTS))
    return float(load["tokens_per_second"])


def search(
    kind: str,
    tried: Sequence[Setting],
    rounds: int,
    run: Callable[[Setting], float],
    watch: Watch,
) -> dict[str, list[float]]:
    """Return the rates of each setting by its name, measured in turns; one that is refused has none."""
    rates: dict[str, list[float]] = {each.name: [] for each in tried}
    left = list(tried)
    for number in range(rounds):
        for each in list(left):
            try:
                found = watch.measure_quietly(lambda: {"rate": run(each)}, 2)  # noqa: B023
            except FAILURES:
                left.remove(each)
                continue
            if found.is_quiet:
                rates[each.name].append(found.result["rate"])
            told = f"{found.result['rate']:,.1f} tokens/s, others {found.others:.0%} of a core"
            clock = time.strftime("%H:%M:%S")
            print(f"{clock} {number + 1}/{rounds} {kind} {each.name}: {told}", file=sys.stderr)
    return rates


def table(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return the medians, beside what is used, by what was measured."""
    lines = ["| | setting | tokens/s | of what is used |", "| --- | --- | ---: | ---: |"]
    for title, rates in found.items():
        used = statistics.median(rates[USED.name]) if rates[USED.name] else None
        for name, each in rates.items():
            if not each or used is None:
                lines.append(f"| {title} | {name} | – | – |")
                continue
            rate = statistics.median(each)
            lines.append(f"| {title} | {name} | {rate:,.0f} | {rate / used:.2f} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu.llama_search",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--models", nargs="+", choices=SIZES, default=["s", "m"], help="(s m)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="(all)")
    parser.add_argument("--form", choices=("bf16", "q8_0", "q4_0"), default="bf16", help="(bf16)")
    parser.add_argument("--rounds", type=int, default=3, help="(3)")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    stop_on_signals()
    if (why := llama_cpp.missing()) is not None:
        print(f"error: llama.cpp is {why}", file=sys.stderr)
        return 1
    found, watch = {}, Watch()
    for model in options.models:
        folder = llama_cpp.cache_dir() / "models" / model
        file, vocab_size = folder / f"{options.form}.gguf", config_of(model)["vocab_size"]
        if not file.exists():
            print(f"error: no {file.name} of {model}: run `make bench-cpu` first", file=sys.stderr)
            return 1
        for kind in options.kinds:
            rates = search(
                kind,
                settings(kind, THREADS),
                options.rounds,
                lambda each: measure(kind, each, file, THREADS, vocab_size, watch),  # noqa: B023
                watch,
            )
            found[f"{model}, {kind}"] = rates
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

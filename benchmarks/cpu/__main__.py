"""exo-engine, llama.cpp, vLLM and transformers on this machine's processor, in turns.

    python -m benchmarks.cpu                                   # prints the tables
    python -m benchmarks.cpu --write                           # replaces these figures in docs/benchmarks/cpu.md and cpu.json
    python -m benchmarks.cpu --peers exo-engine,llama.cpp --models s --cases "decode 1,decode 8"
    python -m benchmarks.cpu --quick                           # tests the benchmark: a tiny model, one round

The models have random weights and are kept in the cache directory, as is the build of llama.cpp. A measurement
during which other processes used more than 8 % of a core is made again, up to --attempts times, and then does
not count; nor does one beside which the machine itself was slow, but with --shared-host. Exit codes: 0; 1 where a contestant failed, or the run was stopped; 3 where a figure has no measurement that counts.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cpu import instructions, llama_cpp, page
from benchmarks.cpu.contestants import THREADS, Contestant, all_contestants, choose
from benchmarks.cpu.models import ROOT, SIZES
from benchmarks.cpu.processes import stop_on_signals
from benchmarks.cpu.quiet import SLOWEST_PACE
from benchmarks.cpu.report import Report, commit
from benchmarks.cpu.run import HTTP, OFFLINE, Bench, Plan

EXIT_FAILED, EXIT_BUSY = 1, 3
_WHOLE = "the whole run"
"""In the place of a contestant, where it was stopped."""
_PLACES = ("--logs", "--output")
"""Flags that say where files of this machine are."""


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    everybody = ", ".join(each.name for each in all_contestants())
    parser.add_argument("--peers", help=f"names, or engines of several, of {everybody} (all)")
    parser.add_argument("--models", help=f"of {', '.join(SIZES)} (s,m,l)")
    parser.add_argument("--cases", help=f"of {', '.join((*OFFLINE, *HTTP))} (all)")
    parser.add_argument("--rounds", type=int, help="three at least where figures are kept (3)")
    parser.add_argument("--attempts", type=int, default=3, help="of a disturbed measurement (3)")
    parser.add_argument(
        "--shared-host",
        action="store_true",
        help="neighbours on the same host, whom no counter tells, slow the machine for hours: count at any pace",
    )
    parser.add_argument("--output-tokens", type=int, help="of each decoded sequence (128)")
    parser.add_argument("--requests", type=int, help="of the load over HTTP (64)")
    parser.add_argument("--quick", action="store_true", help="tests the benchmark, no engine")
    parser.add_argument(
        "--write", action="store_true", help=f"replace the figures of {page.PAGE.name}"
    )
    parser.add_argument(
        "--instructions",
        choices=instructions.VARIABLES,
        help="hold all engines to these; --write then replaces the figures of a page of its own",
    )
    parser.add_argument(
        "--page",
        metavar="NAME",
        help="of another machine: --write replaces the figures of docs/benchmarks/cpu-NAME.md instead",
    )
    parser.add_argument("--output", type=Path, help="file for the figures in JSON")
    parser.add_argument("--logs", type=Path, help="folder for what the processes print")
    options = parser.parse_args(argv)
    _fill(options)
    try:
        named = options.peers
        options.peers = list(all_contestants()) if named is None else choose(named)
    except ValueError as exc:
        parser.error(f"--peers: {exc}")
    options.models = _words(parser, "--models", options.models, SIZES)
    options.cases = _words(parser, "--cases", options.cases, (*OFFLINE, *HTTP))
    numbers = ("rounds", "attempts", "requests")
    if wrong := [name for name in numbers if getattr(options, name) < 1]:
        parser.error(f"--{wrong[0]} must be 1 or more")
    if not 2 <= options.output_tokens <= 512:
        parser.error("--output-tokens must be 2 to 512")
    if options.output and (options.output.is_dir() or not options.output.parent.is_dir()):
        parser.error(f"--output: {options.output} can be no file")  # said before hours are measured
    if options.write and (options.quick or options.rounds < 3):
        parser.error("--write keeps figures: it needs three rounds, and no --quick")
    if options.page is not None and not re.fullmatch("[a-z0-9]+", options.page):
        parser.error(f"--page: {options.page!r} is not of small letters and digits")
    if options.page in instructions.VARIABLES or (options.page and options.instructions):
        parser.error("--page: --instructions has a page of its own")
    name = options.page or options.instructions
    if options.write and not page.page_of(name).is_file():
        parser.error(f"--page: there is no page docs/benchmarks/{page.page_of(name).name}")
    if options.write and options.shared_host and options.rounds < 5:
        parser.error("--write keeps figures: of a shared host it needs five rounds")
    try:
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        parser.error(f"--logs: {exc}")
    return options


def _fill(options: argparse.Namespace) -> None:
    quick = {"models": "tiny", "rounds": 1, "output_tokens": 8, "requests": 8}
    usual = {"models": "s,m,l", "rounds": 3, "output_tokens": 128, "requests": 64}
    for name, value in (quick if options.quick else usual).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.cases is None:
        options.cases = ",".join((*OFFLINE, *HTTP))
    if options.quick:
        options.attempts = 1


def _words(
    parser: argparse.ArgumentParser, flag: str, text: str, known: Sequence[str] | dict[str, str]
) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if wrong := [word for word in words if word not in known]:
        parser.error(f"{flag}: {wrong[0]!r} is none of {', '.join(known)}")
    return words


def those_there(contestants: Sequence[Contestant], report: Report) -> list[Contestant]:
    """Return who can run; tell, and keep in the report, why others cannot."""
    there = []
    for each in contestants:
        if (why := each.missing()) is None:
            there.append(each)
            report.versions[each.name] = each.version()
            report.numbers[each.name] = each.numbers
        else:
            report.note_failure(each.name, why)
            print(f"{each.name} is left out: {why}", file=sys.stderr, flush=True)
    return there


def _prepare(name: str, bench: Bench, report: Report) -> Path:
    """Make a model and what the contestants read; note its shape and their commands."""
    model = llama_cpp.cache_dir() / "models" / name
    print(f"makes {model}", file=sys.stderr, flush=True)
    make = [sys.executable, "-m", "benchmarks.cpu.models", name, str(model)]
    subprocess.run(make, check=True, cwd=ROOT)
    report.shapes[name] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    bench.prepare(name, model)
    for each in bench.contestants:
        if each.name not in report.flags:
            report.flags[each.name] = each.flags(model, report.output_tokens)
            for command in report.flags[each.name]:
                print(f"{each.name}: {command}", file=sys.stderr, flush=True)
    return model


def measure(options: argparse.Namespace, report: Report, logs: Path) -> None:
    """Make the models, and measure one after the other."""
    contestants = those_there(options.peers, report)
    plan = Plan(
        options.cases, options.rounds, options.attempts, options.output_tokens, options.requests
    )
    print(f"{THREADS} threads; what the processes print is in {logs}", file=sys.stderr, flush=True)
    bench = Bench(plan, contestants, report, logs)
    for name in options.models:
        model = _prepare(name, bench, report)
        bench.measure(name, model, report.shapes[name]["vocab_size"])


def shown_command(argv: Sequence[str]) -> str:
    """Return the command for the page, without the places of this machine."""
    kept, words = ["python", "-m", "benchmarks.cpu"], iter(argv)
    for word in words:
        flag, has_value, _ = word.partition("=")
        if flag not in _PLACES:
            kept.append(word)
        elif not has_value:
            next(words, None)
    return shlex.join(kept)


def exit_code(report: Report, *, failed: bool) -> int:
    """Return how the run ends: somebody failed, or a figure has no measurement that counts."""
    cells = {(each["model"], each["contestant"], each["case"]) for each in report.measurements}
    counted = {
        (each["model"], each["contestant"], each["case"])
        for each in report.measurements
        if each["counts"] or report.is_quick
    }
    return EXIT_FAILED if failed else EXIT_BUSY if cells - counted else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    stop_on_signals()
    options = read_options(argv)
    instructions.hold(options.instructions)
    report = Report(
        command=shown_command(sys.argv[1:] if argv is None else argv),
        rounds=options.rounds,
        is_quick=options.quick,
        output_tokens=options.output_tokens,
        slowest_pace=0.0 if options.shared_host else SLOWEST_PACE,
        kernels=instructions.of_kernels(),
        commit=commit(),
    )
    logs = options.logs or Path(tempfile.mkdtemp(prefix="bench-cpu-"))
    try:
        measure(options, report, logs)
    except KeyboardInterrupt:
        print("stopped; no page is written", file=sys.stderr)
        options.write = False
        report.note_failure(_WHOLE, "stopped before its end")
    if options.output:
        options.output.write_text(page.as_json([report]), encoding="utf-8")
    print(page.as_markdown(page.parts_of(report)))
    if options.write:
        page.write(report, options.page or instructions.held())
    there = set(report.versions)
    return exit_code(report, failed=bool((there | {_WHOLE}) & set(report.missing)))


if __name__ == "__main__":
    sys.exit(main())

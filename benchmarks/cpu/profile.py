"""Where a step of exo-engine goes, kernel by kernel, beside the least time that this machine allows each.

    python -m benchmarks.cpu.profile                          # prints the tables for S in bf16, INT8 and INT4
    python -m benchmarks.cpu.profile --models s,m --write     # also into docs/benchmarks/cpu-profile.md
    python -m benchmarks.cpu.profile --quick                  # tests the command: a tiny model, one round

The engine computes all layers of a dense model in one call. To see into a step it is made to go from kernel to kernel,
and each is timed as it is called; the step in one call is timed beside. A round during which others used more than 8 %
of a core is made again, up to --attempts times. Exit code 3 where one never was quiet: then nothing is written.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import exo_engine  # noqa: F401  # before what imports PyTorch: it says how PyTorch's threads wait

from benchmarks.cpu import llama_cpp
from benchmarks.cpu.instructions import of_kernels
from benchmarks.cpu.models import ROOT, SIZES, ensure_model
from benchmarks.cpu.offline import MAX_MODEL_LEN, MAX_NUM_SEQS, ExoEngine, Machine
from benchmarks.cpu.page import BEGIN, END, TITLES
from benchmarks.cpu.quiet import SLOWEST_PACE, Watch, shared_host
from benchmarks.cpu.report import machine, versions
from benchmarks.cpu.shapes import PROMPT_TOKENS, Limits

PAGE = ROOT / "docs" / "benchmarks" / "cpu-profile.md"
FORMS: dict[str, dict[str, str]] = {
    "bf16": {},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "bf16, int8 KV": {"kv_cache_dtype": "int8"},
}
CASES = ("prefill 512", "decode 1", "decode 8", "decode 32")
EXIT_BUSY = 3
_MOST = {"prefill": MAX_MODEL_LEN - 1, "decode": MAX_NUM_SEQS}
"""Tokens of a prompt and sequences at once, for which the engine is started here."""
_MOST_STEPS = 128
"""With so many sequences all of their tokens are in the cache."""
_REST = "between kernels"


@dataclass(slots=True)
class Cost:
    """What the calls of one kind took, and what they had to do at least."""

    calls: int = 0
    seconds: float = 0.0
    read_bytes: float = 0.0
    operations: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def floor(self, limits: Limits) -> float:
        """Return the seconds that reading, or multiplying, takes at least, whichever is longer; 0: neither is much."""
        multiplying = sum(
            count / limits.operations[numbers] for numbers, count in self.operations.items()
        )
        return max(self.read_bytes / limits.read_bytes, multiplying)


@dataclass(slots=True)
class Profile:
    """Steps of one kind: each kernel's share of those that went call by call, and how long others took in one call."""

    costs: dict[str, Cost]
    steps: int
    seconds: float
    """Of the steps that were taken apart."""
    whole_seconds: float
    """Of a step in one call."""


def cost_of_linear(call: Any) -> tuple[str, float, str, float]:
    """Return the kind of a product, the bytes of its weights, its number format and its operations."""
    size = call.num_inputs * call.num_outputs
    scales = 0 if call.bits == 16 else 2 * size / call.group
    kind = f"product, {call.num_inputs:,} to {call.num_outputs:,}"
    numbers = "bf16" if call.bits == 16 else "int8"
    rows = call.rows * (2 if call.input_bits == 16 else 1)
    return kind, size * call.bits / 8 + scales, numbers, 2.0 * size * rows


def cost_of_attention(call: Any) -> tuple[str, float, str, float]:
    """Return the same of attention without a window: keys and values are read once per sequence."""
    pages = call.pages
    count = call.num_sequences
    contexts = (ctypes.c_int32 * count).from_address(call.contexts)
    starts = (ctypes.c_int32 * (count + 1)).from_address(call.starts)
    number_bytes = 1 if pages.is_quantized else 2
    row = 2 * pages.kv_heads * (pages.head_dim * number_bytes + 4 * pages.is_quantized)
    pairs = 0.0
    for index, context in enumerate(contexts):
        tokens = starts[index + 1] - starts[index]
        pairs += tokens * (context - (tokens - 1) / 2)
    operations = 4.0 * pairs * pages.kv_heads * call.group * pages.head_dim
    return "attention", float(row * sum(contexts)), "bf16", operations


_NAMES = {
    "add_and_normalise": "adding and normalising",
    "silu_and_multiply": "gate of the MLP",
    "rotate_and_store": "turning heads, storing keys and values",
    "choose_tokens": "choosing tokens",
    "linear_groups": "products of experts",
    "unpack_rows": "looking up embeddings",
}
_COSTS: dict[str, Callable[[Any], tuple[str, float, str, float]]] = {
    "linear": cost_of_linear,
    "attend": cost_of_attention,
}


@contextmanager
def taken_apart(costs: dict[str, Cost]) -> Iterator[None]:
    """Have the engine in this process go from kernel to kernel, and note what each takes in `costs`."""
    from exo_engine.attention.cpu import CpuAttention
    from exo_engine.kernels.library import chosen_kernels

    kernels = chosen_kernels()
    if kernels is None:
        raise SystemExit("there are no compiled kernels here, so there is nothing to profile")
    names = (*_COSTS, *_NAMES)
    before = {name: getattr(kernels, name) for name in names}
    run_layers = CpuAttention.run_layers

    def timed(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            begun = time.perf_counter()
            function(*arguments)
            seconds = time.perf_counter() - begun
            kind = _NAMES.get(name, "")
            if (read := _COSTS.get(name)) is not None:
                kind, num_bytes, numbers, operations = read(arguments[0]._obj)
                costs[kind].read_bytes += num_bytes
                costs[kind].operations[numbers] += operations
            costs[kind].calls += 1
            costs[kind].seconds += seconds

        return call

    try:
        CpuAttention.run_layers = lambda *_: None  # type: ignore[method-assign]
        for name, function in before.items():
            setattr(kernels, name, timed(name, function))
        yield
    finally:
        CpuAttention.run_layers = run_layers  # type: ignore[method-assign]
        for name, function in before.items():
            setattr(kernels, name, function)


class Profiler:
    """One model in one form."""

    def __init__(self, model: Path, options: dict[str, str]) -> None:
        self._engine = ExoEngine(str(model), dict(options))
        self._count = 0
        self.profile("decode 2", 4)  # warms up

    def profile(self, case: str, steps: int) -> Profile:
        """Take so many steps in one call, and as many apart."""
        costs: dict[str, Cost] = defaultdict(Cost)
        whole, taken = self._time(case, steps)
        with taken_apart(costs):
            seconds, again = self._time(case, steps, begin=costs.clear)
        assert taken == again, "the same steps"
        return Profile(dict(costs), taken, seconds / taken, whole / taken)

    def _time(
        self, case: str, steps: int, begin: Callable[[], None] = lambda: None
    ) -> tuple[float, int]:
        """Return the seconds of steps of a case, and how many there were."""
        kind, _, size = case.partition(" ")
        is_prefill = kind == "prefill"
        batch, prompt = (1, int(size)) if is_prefill else (int(size), PROMPT_TOKENS)
        names = [self._add(prompt, 1 if is_prefill else steps + batch + 2) for _ in range(batch)]
        waiting = set(names)
        while waiting and not is_prefill:
            waiting -= {name for name, number in self._engine.step() if number}
        begin()
        begun, taken = time.perf_counter(), 0
        while waiting if is_prefill else taken < steps:
            waiting -= {name for name, number in self._engine.step() if number}
            taken += 1
        seconds = time.perf_counter() - begun
        self._engine.abort(names)
        return seconds, taken

    def _add(self, tokens: int, output: int) -> str:
        self._count += 1
        last = self._engine.vocab_size - 2
        prompt = [(7919 * (self._count + place)) % last + 1 for place in range(tokens)]
        self._engine.add(str(self._count), prompt, output)
        return str(self._count)


def as_table(profile: Profile, limits: Limits) -> str:
    """Return a row per kernel, the longest first, and what lies between them."""
    lines = [
        "| | calls per step | ms per step | share | least, ms | least / taken |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]

    def add(name: str, calls: str, seconds: float, floor: float) -> None:
        least = f"{1000 * floor:.3f} | {100 * floor / seconds:.0f} %" if floor else "– | –"
        share = f"{100 * seconds / profile.seconds:.0f} %"
        lines.append(f"| {name} | {calls} | {1000 * seconds:.3f} | {share} | {least} |")

    rest = profile.seconds
    for name, cost in sorted(profile.costs.items(), key=lambda item: -item[1].seconds):
        seconds = cost.seconds / profile.steps
        rest -= seconds
        add(name, f"{cost.calls / profile.steps:g}", seconds, cost.floor(limits) / profile.steps)
    add(_REST, "", max(rest, 0.0), 0.0)
    floor = sum(cost.floor(limits) for cost in profile.costs.values()) / profile.steps
    add("all, kernel by kernel", "", profile.seconds, floor)
    add("all, in one call", "", profile.whole_seconds, floor)
    return "\n".join(lines)


def middle(profiles: Sequence[Profile]) -> Profile:
    """Return the round whose step in one call took the median time."""
    ordered = sorted(profiles, key=lambda each: each.whole_seconds)
    return ordered[(len(ordered) - 1) // 2]


def read_limits() -> Limits:
    """Measure what the machine allows."""
    found = Machine("", {}).limits()
    return Limits(found["read_bytes"], {name: found[name] for name in ("bf16", "int8")})


def measure(options: argparse.Namespace) -> tuple[str, bool]:
    """Return the tables, and whether each has only rounds that were quiet."""
    pace = 0.0 if options.shared_host else SLOWEST_PACE
    watch, parts, is_quiet = Watch(slowest_pace=pace), [], True
    limits = watch.measure_quietly(read_limits, options.attempts)
    is_quiet &= limits.is_quiet
    paces = [limits.pace]
    rates = ", ".join(
        f"{rate / 1e9:,.0f} G/s in {name}" for name, rate in limits.result.operations.items()
    )
    parts.append(
        f"The machine: {limits.result.read_bytes / 1e9:.1f} GB/s read from memory; operations of products {rates}."
    )
    for name in options.models:
        model = llama_cpp.cache_dir() / "models" / name
        ensure_model(name, model)
        parts.append(f"## {TITLES[name]}")
        for form in options.forms:
            profiler = Profiler(model, FORMS[form])
            for case in options.cases:
                rounds = []
                for _ in range(options.rounds):
                    run = watch.measure_quietly(
                        lambda: profiler.profile(case, options.steps),  # noqa: B023
                        options.attempts,
                    )
                    is_quiet &= run.is_quiet
                    paces.append(run.pace)
                    rounds.append(run.result)
                    print(
                        f"{name} {form} {case}: others {run.others:.2f}, pace {run.pace:.2f}",
                        file=sys.stderr,
                    )
                parts += [f"### {form}, {case}", as_table(middle(rounds), limits.result)]
    if options.shared_host:
        parts.insert(0, shared_host(paces))
    return "\n\n".join(parts), is_quiet


def write(text: str, page: Path = PAGE) -> None:
    """Replace the figures of the page."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu.profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--models", help=f"of {', '.join(SIZES)} (s)")
    parser.add_argument("--forms", default=";".join(FORMS), help=f"of {'; '.join(FORMS)} (all)")
    parser.add_argument("--cases", default=",".join(CASES), help="such as `decode 4` (%(default)s)")
    parser.add_argument("--rounds", type=int, help="of each, of which the median is told (3)")
    parser.add_argument("--attempts", type=int, default=3, help="of a disturbed round (3)")
    parser.add_argument(
        "--shared-host", action="store_true", help="count at any pace of the machine, and say so"
    )
    parser.add_argument("--steps", type=int, help="of a round that decodes (64)")
    parser.add_argument("--quick", action="store_true", help="tests the command, no engine")
    parser.add_argument("--write", action="store_true", help=f"replace the figures of {PAGE.name}")
    options = parser.parse_args(argv)
    for name in ("rounds", "attempts", "steps"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name} must be 1 or more")
    if options.steps is not None and options.steps > _MOST_STEPS:
        parser.error(f"--steps must be {_MOST_STEPS} or less")
    models = "tiny" if options.quick else "s"
    options.models = _words(models if options.models is None else options.models, ",")
    options.forms, options.cases = _words(options.forms, ";"), _words(options.cases, ",")
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.steps = options.steps or (3 if options.quick else 64)
    for case in options.cases:
        kind, _, size = case.partition(" ")
        most = _MOST.get(kind, 0)
        if not size.isdecimal() or not 1 <= int(size) <= most:
            sizes = " or ".join(f"`{name}` of 1 to {number}" for name, number in _MOST.items())
            parser.error(f"--cases: {case!r} is no {sizes}")
    for given, known, mark in ((options.models, SIZES, ", "), (options.forms, FORMS, "; ")):
        if unknown := [word for word in given if word not in known]:
            parser.error(f"there is no {unknown[0]!r}, only {mark.join(known)}")
    if options.write and options.rounds < 3:
        parser.error("--write keeps figures: it needs three rounds")
    if options.quick and options.write:
        parser.error("figures of --quick are none of an engine, so they are not written")
    return options


def _words(text: str, mark: str) -> list[str]:
    """Return what stands between the marks, each once."""
    return list(dict.fromkeys(" ".join(word.split()) for word in text.split(mark)))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = read_options(argv)
    words = sys.argv[1:] if argv is None else argv
    text, is_quiet = measure(options)
    where = ", ".join(f"{name} {value}" for name, value in versions().items())
    made = datetime.now(tz=UTC).date().isoformat()
    command = " ".join(
        ["python -m benchmarks.cpu.profile", *(json.dumps(w) if " " in w else w for w in words)]
    )
    head = (
        f"Made on {made} by `{command}`: {machine()}; {where}; kernels: {of_kernels()}. "
        f"Medians of {options.rounds} rounds."
    )
    print(f"{head}\n\n{text}")
    if not is_quiet and not options.quick:
        print("others used the machine meanwhile, so nothing is written", file=sys.stderr)
        return EXIT_BUSY
    if options.write:
        write(f"{head}\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

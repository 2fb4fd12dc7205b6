"""Compiles the GPU kernels without a GPU, and reckons how long each takes; nothing is measured.

    python gpu_reckoning.py --compile sm_86 gfx942    JSON of what the compiler made, one line per kernel
    python gpu_reckoning.py --compile sm_86 --few     half of them, with every setting of each kernel
    python gpu_reckoning.py --write docs/benchmarks/gpu.md
    python gpu_reckoning.py --write docs/benchmarks/gpu.md --steps      only what whole steps cost, in the page that is there

A launch takes the longest of three times: bytes at the memory's rate, as far as enough of them are on their
way; matrix products at the tensor cores' rate, rows that fill a tile up included; instructions at four
per processor and cycle, those in a loop once per tile and the others once. The roofline is the first two, without any of
what this version adds. The first run on a GPU is to confirm or refute each number: where what
`make gpu-check OUTPUT=docs/benchmarks/gpu.json` wrote lies beside the page, its figures come first, in tables of their own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import triton
from exo_engine.kernels.triton.launch import Target
from gpu.launches import SHAPES, Shape, Work, all_works, decode, storing
from gpu.matrices import matrix_works
from gpu.measured import MOST_LOST, bounds, measured, missed
from gpu.products import gating, norm, product, product_works
from offline_compiler import Compiled, compile_launch, compiled_key, settings, targets
from random_models import GPU_SIZES, config_of

_STEPS_TITLE = "## What `--batch-invariant` costs in a step"
_MODELS = {"Llama-3.1-8B": "llama-3.1-8b", "Qwen3-0.6B": "qwen3-0.6b"}
_BATCHES, _CONTEXT = (1, 32, 256), 1024
_LAUNCH_SECONDS = 2e-6
_LATENCY_SECONDS = 0.8e-6
"""Of a read from memory under load."""


@dataclass(frozen=True, slots=True)
class Card:
    """Rates of a GPU."""

    name: str
    target: str
    num_processors: int
    bytes_per_second: float
    operations_per_second: float
    """bf16 products with float32 sums."""
    hertz: float


CARDS = (
    Card("H200", "sm_90", 132, 4.3e12, 790e12, 1.75e9),
    Card("H100", "sm_90", 132, 3.0e12, 790e12, 1.75e9),
    Card("L40S", "sm_89", 142, 0.78e12, 330e12, 2.3e9),
    Card("A5000", "sm_86", 64, 0.69e12, 100e12, 1.65e9),
)
"""H200: copy and products as measured on one, H100's products likewise; the others: 90 % of what the vendor states."""


@dataclass(frozen=True, slots=True)
class Row:
    """One launch on one card."""

    name: str
    card: str
    roofline_us: float
    reckoned_us: float
    bound: str
    registers: int
    warps: int


def main() -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--compile", nargs="+", metavar="TARGET", choices=sorted(targets()))
    parser.add_argument("--few", action="store_true", help="leave out what combines settings anew")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    parser.add_argument("--steps", action="store_true", help="only the table of whole steps")
    arguments = parser.parse_args()
    if arguments.steps and arguments.write:
        text = arguments.write.read_text()
        before, _, rest = text.partition(f"{_STEPS_TITLE}\n")
        after = rest[rest.index("\n## ") + 1 :]
        arguments.write.write_text(before + "\n".join(steps_table(all_steps())) + "\n\n" + after)
        return 0
    for name in arguments.compile or ():
        works = works_of(targets()[name], small_shapes())
        for work, compiled in compile_all(few(works) if arguments.few else works, name):
            print(json.dumps({"name": work.name, "head_dim": work.head_dim, "kind": work.kind, **asdict(compiled)}))  # fmt: skip
    if arguments.write:
        measurements = arguments.write.with_suffix(".json")
        report = json.loads(measurements.read_text()) if measurements.exists() else None
        if report is not None:
            add_estimates(report)
        rows = [row for card in CARDS for row in reckon_card(card)]
        arguments.write.write_text(page(rows, report, all_steps()))
    return 0


def add_estimates(report: dict[str, Any]) -> None:
    """Put the planner's estimate beside each step of single tokens that was measured, where it knows the GPU."""
    from exo_inference.errors import UsageError
    from exo_inference.planner import EngineParameters, find_gpu, plan, read_architecture

    try:
        gpu = find_gpu(report["environment"]["gpu"])
    except UsageError:
        return
    for row in (row for part in report["parts"].values() for row in part["rows"]):
        size, _, way = row.get("model", "").partition(" ")
        if size not in GPU_SIZES or way not in ("", "fp8", "int4") or "sequences" not in row:
            continue
        parameters = EngineParameters(
            engine="exo",
            max_model_len=row["context"],
            max_num_seqs=row["sequences"],
            quantization=way or None,
            kv_cache_dtype="fp8" if way == "fp8" else "auto",
        )
        speed = plan(read_architecture(config_of(GPU_SIZES[size])), gpu, 1, parameters).speed
        for each in speed.batches if speed is not None else ():
            if each.batch == row["sequences"]:
                row["planner_tokens_per_second"] = each.tokens_per_second


def small_shapes() -> tuple[Shape, ...]:
    """Return shapes with heads of 64, 128 and 256 numbers and with latents, each with one step."""
    found = {shape.dim: replace(shape, steps=((32, 1024),)) for shape in reversed(SHAPES)}
    return tuple(found[dim] for dim in (64, 128, 256, 576))


def works_of(target: Target, shapes: tuple[Shape, ...] = SHAPES) -> list[Work]:
    """Return every launch that is compiled for a target.

    Of matrices there is one size where `shapes` are fewer than all: sizes change no loop and no tile.
    """
    most = 2 if shapes is SHAPES else 1
    attention = all_works(target, shapes)
    return [*attention, *matrix_works(target, most), *product_works(target, most)]


def few(works: Iterable[Work]) -> list[Work]:
    """Return few of the launches: each kernel with every setting, and those of every use with every size of heads.

    A setting is one of `settings`, and for every use, how numbers are stored and whether sums have one order. Queries
    of float32 are there with every size of heads, every way to store keys, and fixed sums in each use.
    """
    held = {id(work): (work, _held_by(work)) for work in works}
    wanted, chosen = set[object]().union(*(own for _, own in held.values())), []
    while wanted:
        work, own = max(held.values(), key=lambda each: len(wanted & each[1]))
        wanted -= own
        chosen.append(work)
    return chosen


def _held_by(work: Work) -> set[object]:
    launch = work.launch
    stored = launch.arguments.get("STORED")
    uses = [("heads", work.head_dim), ("stored", stored), ("fuses", launch.fuses)]
    output = launch.arguments.get("output")
    if output is not None and output.dtype == torch.float32:
        uses = [("float32", *uses[0]), ("float32", *uses[1]), ("float32", work.kind, *uses[2])]
        return settings(launch) | {(launch.kernel, *each) for each in uses}
    return settings(launch) | {(launch.kernel, work.kind, *each) for each in uses}


def compile_all(
    works: Iterable[Work], name: str, *, has_loops: bool = False
) -> Iterator[tuple[Work, Compiled]]:
    """Compile launches for a target; those that differ in nothing that the compiler sees, once."""
    target = targets()[name]
    done: dict[object, Compiled] = {}
    for work in works:
        key = compiled_key(work.launch)
        if key not in done:
            done[key] = compile_launch(work.launch, target, has_loops=has_loops)
        yield work, done[key]


def reckon_card(card: Card) -> Iterator[Row]:
    """Reckon every launch on a card."""
    works = works_of(targets()[card.target])
    for work, compiled in compile_all(works, card.target, has_loops=True):
        yield reckon(work, compiled, card)


def reckon(work: Work, compiled: Compiled, card: Card) -> Row:
    """Reckon one launch."""
    programs = 1
    for size in work.launch.grid:
        programs *= size
    warps = compiled.warps_per_processor(targets()[card.target])
    resident = max(1, warps // compiled.num_warps)
    waves = -(-programs // (card.num_processors * resident))
    # Every program takes as long as the rest of its wave.
    fullness = programs / (waves * card.num_processors * resident)
    busy = min(1.0, programs / card.num_processors)
    in_flight = (
        work.launch.num_stages * work.tile_bytes * min(resident, programs / card.num_processors)
    )
    needed = card.bytes_per_second / card.num_processors * _LATENCY_SECONDS
    memory = work.num_bytes / card.bytes_per_second
    products = work.operations * work.padding / card.operations_per_second
    looped = compiled.instructions if compiled.looped is None else compiled.looped
    of_program = compiled.instructions + looped * (work.tiles_per_program - 1)
    issued = of_program * compiled.num_warps * programs
    issuing = issued / (4 * card.hertz * card.num_processors)
    times = {
        "memory": memory / min(1.0, in_flight / needed),
        "products": products / (fullness if waves > 1 else busy),
        "instructions": issuing / (fullness if waves > 1 else busy),
    }
    bound = max(times, key=lambda name: times[name])
    roofline = max(memory, work.operations / card.operations_per_second)
    return Row(
        work.name,
        card.name,
        roofline * 1e6,
        (times[bound] + _LAUNCH_SECONDS) * 1e6,
        bound,
        compiled.registers,
        warps,
    )


@dataclass(frozen=True, slots=True)
class Step:
    """A step of single tokens on one card, with `--batch-invariant` and without."""

    card: str
    model: str
    sequences: int
    plain_us: float
    fixed_us: float
    added_us: Mapping[str, float]
    """What products and attention add."""

    @property
    def lost(self) -> float:
        """The share of its tokens per second that fixed sums take."""
        return 1 - self.plain_us / self.fixed_us


def all_steps() -> Iterator[Step]:
    """Reckon the steps of the page."""
    done: dict[object, Compiled] = {}
    for card, (model, size), batch in itertools.product(CARDS, _MODELS.items(), _BATCHES):
        yield reckon_step(card, model, size, batch, done)


def reckon_step(
    card: Card, model: str, size: str, batch: int, done: dict[object, Compiled]
) -> Step:
    """Reckon one step: all layers, the last norm and the logits.

    Without fixed sums products by one matrix are taken at the roofline. Drawing tokens is left out.

    Args:
        card: that it runs on.
        model: the name of its heads among `SHAPES`.
        size: its name among `GPU_SIZES`.
        batch: sequences, of `_CONTEXT` tokens each.
        done: what was compiled already, and by what.
    """
    target, config = targets()[card.target], GPU_SIZES[size]
    heads = next(shape for shape in SHAPES if shape.name == model)
    hidden, inner, layers = (
        config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")
    )

    def seconds(works: Iterable[Work]) -> float:
        total = 0.0
        for work in works:
            key = (card.target, compiled_key(work.launch))
            if key not in done:
                done[key] = compile_launch(work.launch, target, has_loops=True)
            total += reckon(work, done[key], card).reckoned_us
        return total

    def at_roofline(num_bytes: float, operations: float = 0.0) -> float:
        rate = max(num_bytes / card.bytes_per_second, operations / card.operations_per_second)
        return (rate + _LAUNCH_SECONDS) * 1e6

    matrices = {
        ((heads.heads + 2 * heads.kv_heads) * heads.dim, hidden): layers,
        (hidden, heads.heads * heads.dim): layers,
        (2 * inner, hidden): layers,
        (hidden, inner): layers,
        (config["vocab_size"], hidden): 1,
    }
    plain = {
        "products": sum(
            count * at_roofline(2.0 * (n * k + batch * (n + k)), 2.0 * batch * n * k)
            for (n, k), count in matrices.items()
        ),
        "attention": layers * seconds(decode(heads, "bfloat16", batch, _CONTEXT, target)),
    }
    fixed = {
        "products": sum(
            count * seconds(product("plain", shape, batch, target, is_fixed=True))
            for shape, count in matrices.items()
        ),
        "attention": layers
        * seconds(decode(heads, "bfloat16", batch, _CONTEXT, target, is_fixed=True)),
    }
    same = (2 * layers + 1) * seconds([norm(batch, hidden, target, has_updates=True)])
    same += layers * seconds(
        [storing(heads, "bfloat16", batch, target), gating(batch, inner, target)]
    )
    added = {name: fixed[name] - plain[name] for name in plain}
    return Step(
        card.name, model, batch, same + sum(plain.values()), same + sum(fixed.values()), added
    )


def steps_table(steps: Iterable[Step]) -> list[str]:
    """Return the section of what whole steps cost, and of which aims they miss."""
    steps = tuple(steps)
    return [
        _STEPS_TITLE,
        "",
        f"Steps of single tokens with {_CONTEXT:,} tokens of context each, bfloat16, summed over all layers, the last norm and the logits; "
        "times in microseconds. Without fixed sums products are taken at the roofline, as nobody could be faster, and",
        "those in tiles of one size as the tables below have them. Sums are cut where a matrix has too few tiles of outputs for the "
        "processors; to add the parts up is a launch of its own for few rows, as it is counted here.",
        "",
        "| card | model | sequences | plain | batch-invariant | of which products | attention | lost, % | aim, % |",
        f"|{' --- |' * 9}",
        *(
            f"| {s.card} | {s.model} | {s.sequences} | {s.plain_us:,.0f} | {s.fixed_us:,.0f} | "
            + " | ".join(f"{s.added_us[name]:+,.0f}" for name in ("products", "attention"))
            + f" | {100 * s.lost:.0f} | ≤ {100 * MOST_LOST:.0f} |"
            for s in steps
        ),
        "",
        *missed(steps),
    ]


def page(
    rows: Iterable[Row], report: Mapping[str, Any] | None = None, steps: Iterable[Step] = ()
) -> str:
    """Return the page of the documentation.

    Args:
        rows: what was reckoned.
        report: what `gpu_check.py` measured; None: nothing was. Neither is mixed with the other.
        steps: what was reckoned of whole steps.
    """
    head = (
        "**Reckoned: nothing on this page was measured.** `make gpu-check` as a whole has run on no GPU yet; parts of it have, on an H200 "
        "([the first runs](gpu-first-run.md)), which refuted the times that instructions bind. The kernels pass"
    )
    if report is not None:
        head = "**Reckoned, not measured: all tables from here on.** The kernels pass"
    lines = [
        "# The engine on a GPU",
        "",
        *([] if report is None else [*measured(report), "## Reckoned", ""]),
        f"{head} their tests in Triton's "
        "interpreter, and compile for compute capability 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0 and for AMD's gfx942 and gfx950.",
        "What is below is what the compiler says (registers, warps that a processor holds) and what follows from bytes, products and "
        "instructions; `make gpu-check` on a machine with a GPU is to confirm or refute it. Times are of one launch, in microseconds.",
        "",
        f"Made by `python engine-images/exo-engine/benchmarks/gpu_reckoning.py --write docs/benchmarks/gpu.md` with Triton {triton.__version__}.",
        "",
        "| card | copy, TB/s | bf16 products, TFLOP/s | processors |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {c.name} | {c.bytes_per_second / 1e12:.2f} | {c.operations_per_second / 1e12:.0f} | {c.num_processors} |"
        for c in CARDS
    ]
    lines += [
        "",
        "The H200's rates were measured on one, and the H100's products are taken to be the same; the others are 90 % of what their vendor states.",
    ]
    lines += [
        "A time well above the roofline names what binds it. Instructions are counted once for every tile of a kernel's loop, and "
        "those before and behind it once; of a loop within a loop all of the outer one is counted for every tile of the inner one."
    ]
    lines += ["", *bounds(), "", *steps_table(steps)]
    for card in CARDS:
        lines += [
            "",
            f"## {card.name}",
            "",
            "| launch | roofline | reckoned | bound by | registers | warps |",
        ]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        lines += [
            f"| {r.name} | {r.roofline_us:.1f} | {r.reckoned_us:.1f} | {r.bound} | {r.registers} | {r.warps} |"
            for r in rows
            if r.card == card.name
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

"""A plan as people read it: verdict, a bar per GPU, the figures, what is wrong, ways out.

`report` returns styled lines; `print_page` sends them to a terminal or, plain, into a pipe. Lines
that are meant to be pasted are never wrapped.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from exo_inference.cli.plan import words
from exo_inference.cli.plan.bars import GpuMemory, draw, gpu_memories
from exo_inference.cli.plan.command_line import CommandLine
from exo_inference.cli.rendering.terminal import display_width, harmless, print_data
from exo_inference.wire import MEMORY_CODES, BatchSpeed, DeploymentPlan, PlanAdvice, PlanVerdict

MIN_WIDTH, MAX_WIDTH = 60, 120
_MAX_BAR = 96
_COLOURS = {
    PlanVerdict.FITS: "bold green",
    PlanVerdict.TIGHT: "bold yellow",
    PlanVerdict.REFUSED: "bold red",
    PlanVerdict.UNKNOWN: "bold",
}
_NUM_BATCHES = 6
_STARTS = (PlanVerdict.FITS, PlanVerdict.TIGHT)


def page_width() -> int:
    """Return how wide a page may be: COLUMNS or the terminal, within what reads well."""
    return min(MAX_WIDTH, max(MIN_WIDTH, shutil.get_terminal_size().columns))


def print_page(lines: Sequence[Text]) -> None:
    """Print lines to stdout, in colour on a terminal."""
    if not sys.stdout.isatty():
        print_data("".join(f"{line.plain}\n" for line in lines))
        return
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(line)


def report(plan: DeploymentPlan, line: CommandLine, replicas: int, width: int) -> list[Text]:
    """Return a whole plan.

    Args:
        plan: of one replica.
        line: what was asked for, to print what to paste.
        replicas: how many of them, for the price.
        width: columns.
    """
    title = Text(harmless(words.headline(plan)), _COLOURS.get(plan.verdict, "bold"))
    return _spaced(
        [
            [title, *_details(plan, width)],
            *_memory_sections(plan, width),
            [*_cache(plan)],
            [*_speed(plan, width)],
            [*_cost(plan, replicas)],
            [*_notes(plan, width)],
            [*ways_out(plan, line, width)],
            [*_improvements(plan, line, width)],
        ]
    )


def refusal_text(plan: DeploymentPlan, line: CommandLine, width: int) -> str:
    """Return the ways out, and the bars where memory has a part in it, for below the text of a refusal."""
    is_of_memory = any(each.refuses and each.code in MEMORY_CODES for each in plan.problems)
    memory = _memory_sections(plan, width) if is_of_memory else []
    lines = _spaced([[*ways_out(plan, line, width)], *memory])
    return "\n".join(row.plain for row in lines)


def _spaced(sections: Sequence[Sequence[Text]]) -> list[Text]:
    """Join sections with an empty line between them."""
    lines: list[Text] = []
    for section in sections:
        lines += [*([Text()] if lines and section else []), *section]
    return lines


def _details(plan: DeploymentPlan, width: int) -> Iterator[Text]:
    for problem in plan.problems:
        yield from wrapped(f"- {words.told(plan, problem)}", width, 2)


def _memory_sections(plan: DeploymentPlan, width: int) -> list[list[Text]]:
    kinds = gpu_memories(plan)
    is_cpu = plan.gpu_type == "cpu"
    return [[*_memory(memory, width, len(kinds), is_cpu=is_cpu)] for memory in kinds]


def _memory(memory: GpuMemory, width: int, num_kinds: int, *, is_cpu: bool) -> Iterator[Text]:
    total, device = words.gib(memory.total_bytes), "CPU" if is_cpu else "GPU"
    if memory.is_fullest:
        title = f"Memory of the fullest {device}, {total}"
    elif num_kinds > 1:
        title = f"Memory of {memory.num_gpus} of the {device}s, {total} each"
    elif memory.num_gpus > 1:
        title = f"Memory of each {device}, {total}, × {memory.num_gpus}"
    else:
        title = f"Memory of the {'machine' if is_cpu else 'GPU'}, {total}"
    excess = memory.used_bytes - memory.total_bytes
    if excess > 0.001 * memory.total_bytes:
        title += f"; {words.gib(memory.used_bytes)} are asked of it"
    yield Text(title, "bold")
    yield Text.assemble("  ", *draw(memory, min(_MAX_BAR, width - 4)))
    names = max(len(part.look.label) for part in memory.parts)
    for part in memory.parts:
        row = f" {part.look.label:<{names}} {words.gib(part.num_bytes):>12}"
        if part.low != part.high:
            row += f"   {part.low / words.GIB:,.2f} to {words.gib(part.high)}"
        yield Text.assemble("  ", (part.look.character, part.look.colour), row)


def _cache(plan: DeploymentPlan) -> Iterator[Text]:
    if words.has_no_cache(plan):
        yield Text.assemble(("KV cache", "bold"), " none: texts are computed whole")
    if not plan.kv_bytes_per_token:
        return
    is_fullest = any(memory.is_fullest for memory in gpu_memories(plan))
    where = " on the fullest GPU" if is_fullest else " on each GPU"
    where = "" if plan.gpu_type == "cpu" else where
    rows = [("per token", words.kib(plan.kv_bytes_per_token) + where)]
    if plan.kv_capacity_tokens and (plan.largest_max_model_len or plan.verdict in _STARTS):
        at_once = words.concurrency(plan.max_concurrency)
        length, most = f"{plan.max_model_len:,}", f"{plan.max_num_seqs:,}"
        rows += [
            ("holds", f"{plan.kv_capacity_tokens:,} tokens"),
            ("requests at once", f"{at_once} of {length} tokens, {most} at most"),
            ("longest context", words.longest_context(plan)),
        ]
    yield Text("KV cache", "bold")
    for label, value in rows:
        yield Text(f"  {label:<18}{value}")


def _speed(plan: DeploymentPlan, width: int) -> Iterator[Text]:
    speed = plan.speed
    if speed is None or not speed.prompts:
        return
    yield Text("Speed of one replica, estimated", "bold")
    yield from wrapped(speed.source, width, 0)
    prompts = [
        (
            f"{each.num_tokens:,}",
            words.seconds(each.ttft_seconds),
            _band(each.ttft_seconds_low, each.ttft_seconds_high, words.seconds),
            each.bound_by,
        )
        for each in speed.prompts
    ]
    if not speed.batches:
        yield from align(("tokens of a text", "its vector or score", "likely", "bound by"), prompts)
        return
    yield from align(("prompt tokens", "first token", "likely", "bound by"), prompts)
    yield Text()
    batches = [
        (
            f"{each.batch:,}",
            words.seconds(each.inter_token_seconds),
            _band(each.inter_token_seconds_low, each.inter_token_seconds_high, words.seconds),
            f"{each.tokens_per_second:,.0f}",
            _band(*_cost_band(each), words.usd),
            each.bound_by,
        )
        for each in _sample(speed.batches)
    ]
    heads = ("requests", "between tokens", "likely", "tokens/s", "USD/M tokens", "bound by")
    yield from align(heads, batches)


def _band(low: float | None, high: float | None, say: Callable[[float], str]) -> str:
    if low is None or high is None:
        return "-"
    first, last = say(low), say(high)
    unit = last[last.find(" ") :] if " " in last else ""
    return f"{first.removesuffix(unit) if unit else first}-{last}"


def _cost_band(batch: BatchSpeed) -> tuple[float | None, float | None]:
    """Return what a million tokens cost at both ends of the band: the price is of time."""
    cost, middle = batch.usd_per_million_tokens, batch.inter_token_seconds
    ends = (batch.inter_token_seconds_low, batch.inter_token_seconds_high)
    low, high = (None if cost is None or not end else cost * end / middle for end in ends)
    return low, high


def _sample(batches: Sequence[BatchSpeed]) -> list[BatchSpeed]:
    """Return a few batch sizes, the smallest and the largest among them."""
    last = len(batches) - 1
    steps = min(_NUM_BATCHES - 1, last) or 1
    return [batches[index] for index in sorted({round(last * n / steps) for n in range(steps + 1)})]


def align(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 0) -> Iterator[Text]:
    """Yield rows with figures aligned to the right, and words to the left.

    Args:
        heads: of the columns.
        rows: their cells.
        left: how many of the first columns are words; without any, the last one is.
    """
    cells = [list(heads), *([harmless(cell) for cell in row] for row in rows)]
    widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
    words = set(range(left)) if left else {len(heads) - 1}
    gap = "  " if left else "   "
    for number, row in enumerate(cells):
        padded = [
            f"{cell:<{width}}" if column in words else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield Text(f"  {gap.join(padded)}".rstrip(), "dim" if number == 0 else "")


def _cost(plan: DeploymentPlan, replicas: int) -> Iterator[Text]:
    if plan.usd_per_hour is None:
        return
    text = f" {words.usd(plan.usd_per_hour)} USD per hour and replica"
    if replicas > 1:
        text += f", {words.usd(plan.usd_per_hour * replicas)} for {replicas} replicas"
    yield Text.assemble(("Price", "bold"), text)


def _notes(plan: DeploymentPlan, width: int) -> Iterator[Text]:
    if plan.notes:
        yield Text("Notes", "bold")
    for note in plan.notes:
        yield from wrapped(f"- {note}", width, 2)


def ways_out(plan: DeploymentPlan, line: CommandLine, width: int) -> Iterator[Text]:
    """Yield what would make it fit, each with its outcome and a line to paste."""
    if not plan.advice:
        if plan.verdict == PlanVerdict.REFUSED and words.verdict_words(plan) == "Does not fit":
            yield Text("No small change makes it fit.")
        return
    yield Text("What makes it fit, the smallest change first", "bold")
    for number, advice in enumerate(plan.advice, 1):
        yield from wrapped(f"{number}. {advice.effect}", width, 3)
        if outcome := _outcome(advice):
            yield from wrapped(outcome, width, 3, first=5)
        yield from wrapped(_costs(advice), width, 3, first=5)
        yield from _to_paste(line, advice.options, advice.flags)


def _outcome(advice: PlanAdvice) -> str:
    after = advice.plan
    if after is None:
        return ""
    most = max((b.tokens_per_second for b in after.speed.batches), default=0) if after.speed else 0
    parts = ["no KV cache", f"texts of up to {after.max_model_len:,} tokens"]
    if not words.has_no_cache(after):
        parts = [
            f"{words.size(after.available_kv_bytes_per_gpu)}{words.per_gpu(after)} for the KV cache",
            f"{words.concurrency(after.max_concurrency)} requests of {after.max_model_len:,} tokens",
            *([f"up to {most:,.0f} tokens/s"] if most else []),
        ]
    parts += [f"{words.usd(after.usd_per_hour)} USD/h"] if after.usd_per_hour is not None else []
    return ", ".join(parts)


def _costs(advice: PlanAdvice) -> str:
    """Say what a change does to answers, to requests at once, and to the time between tokens."""
    parts = [f"answers {advice.quality}"]
    if abs(requests := advice.max_concurrency_change) >= 0.05:
        more = "more" if requests > 0 else "fewer"
        parts.append(f"{words.concurrency(abs(requests))} {more} requests at once")
    if abs(seconds := advice.inter_token_seconds_change or 0) >= 0.00005:
        more = "more" if seconds > 0 else "less"
        parts.append(f"{words.seconds(abs(seconds))} {more} between tokens")
    return ", ".join(parts)


def _improvements(plan: DeploymentPlan, line: CommandLine, width: int) -> Iterator[Text]:
    if plan.improvements:
        yield Text("What could be better", "bold")
    for improvement in plan.improvements:
        yield from wrapped(f"- {improvement.text}", width, 2)
        if improvement.options or improvement.flags:
            yield from _to_paste(line, improvement.options, improvement.flags)


def _to_paste(line: CommandLine, options: Sequence[str], flags: Sequence[str]) -> Iterator[Text]:
    text = line.with_changes(options, flags)
    if text is None:
        changes = " ".join([*options, *flags])
        yield Text(harmless(f"     needs another deployment, with {changes}"))
    else:
        yield Text(f"     {harmless(text)}", "cyan")


def wrapped(text: str, width: int, indent: int, first: int = 2) -> Iterator[Text]:
    """Yield words in as many lines as they need; those after the first are indented further."""
    later = " " * (first if first > 2 else first + indent)
    for row in textwrap.wrap(
        harmless(text), width, initial_indent=" " * first, subsequent_indent=later,
        break_long_words=False, break_on_hyphens=False,
    ):  # fmt: skip
        yield Text(row)

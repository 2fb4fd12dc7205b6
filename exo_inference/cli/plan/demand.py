"""`deployment plan --for`: the cheapest GPUs and replicas that hold a demand.

Reckoned from each plan's speeds at their pessimistic end; each data rank has its share of the requests. A prompt takes
`ttft` and writes the first token; `steps = output - 1` steps of `itl` write the others, for `b` requests at once. A
rank with `r` requests a second spends the share `r * ttft` of its time on prompts: it holds no more than
`r = b / (steps * itl + b * ttft)`, and tokens come `itl / (1 - r * ttft)` apart. That is the load that there is, not
the most that a rank holds: fewer requests, or more replicas, bring it down to `itl`. Arrivals that come in bursts wait;
that is not in it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from exo_inference.cli.plan import words
from exo_inference.cli.plan.report import align, wrapped
from exo_inference.cli.plan.times import Times
from exo_inference.cli.rendering.terminal import harmless
from exo_inference.errors import UsageError
from exo_inference.wire import DeploymentPlan, PlanVerdict

if TYPE_CHECKING:
    from exo_inference.cli.plan.command_line import CommandLine

_HINT = "For example --for 'requests=20/s input=1000 output=300 ttft<=500ms itl<=40ms'."
_MOST = 10**7
_WORD = re.compile(
    r"(requests|input|output)=(\d{1,9}(?:\.\d{1,6})?)(/s)?|(ttft|itl)<=(\d{1,9}(?:\.\d{1,6})?)(ms|s)"
)


@dataclass(frozen=True)
class Demand:
    """What is asked of a deployment.

    Attributes:
        requests: per second.
        input_tokens, output_tokens: of each request.
        ttft, itl: the most seconds to the first token and between tokens; infinite where not asked for.
    """

    requests: float
    input_tokens: int
    output_tokens: int
    ttft: float = math.inf
    itl: float = math.inf

    @property
    def num_tokens(self) -> int:
        """Tokens of a request."""
        return self.input_tokens + self.output_tokens

    @property
    def context(self) -> int:
        """Tokens that a request has while it is decoded, in the middle of its answer."""
        return self.input_tokens + self.output_tokens // 2

    @property
    def length(self) -> int:
        """Tokens of a request, as a context that an engine is set to: a multiple of 1,024."""
        return -(-self.num_tokens // 1024) * 1024


def parse_demand(text: str) -> Demand:
    """Return a demand.

    Raises:
        UsageError: a word is not known, is there twice or is missing, or a number is out of range.
    """
    found: dict[str, float] = {}
    for word in text.split():
        match = _WORD.fullmatch(word)
        if match is None:
            raise UsageError(f"--for has {word!r:.60}, which is no part of a demand", hint=_HINT)
        name = match.group(1) or match.group(4)
        if name in found:
            raise UsageError(f"--for says {name} twice", hint=_HINT)
        if (match.group(3) is not None) != (name == "requests") and match.group(1):
            raise UsageError(
                f"--for has {word!r:.60}: requests are per second, tokens are not", hint=_HINT
            )
        scale = 0.001 if match.group(6) == "ms" else 1.0
        found[name] = float(match.group(2) or match.group(5)) * scale
    missing = [name for name in ("requests", "input", "output") if name not in found]
    if missing:
        raise UsageError(f"--for lacks {' and '.join(missing)}", hint=_HINT)
    if (
        not all(0 < value <= _MOST for value in found.values())
        or min(found["input"], found["output"]) < 1
    ):
        raise UsageError(f"--for has a number outside of 1 token to {_MOST:,}", hint=_HINT)
    for name in ("input", "output"):
        if found[name] != int(found[name]):
            raise UsageError(
                f"--for has {name}={found[name]:g}, expected a whole number of tokens", hint=_HINT
            )
    return Demand(
        found["requests"], int(found["input"]), int(found["output"]),
        found.get("ttft", math.inf), found.get("itl", math.inf),
    )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """One kind of replica, and how many hold the demand.

    Attributes:
        requests: that each replica holds per second at most.
        batch: requests that each replica decodes at once, with its share of the demand.
        ttft, itl: seconds with that share, at the pessimistic end; no `itl` where an answer is one token.
        usd_per_hour: of all replicas; None where no price is known.
    """

    plan: DeploymentPlan
    replicas: int
    batch: int
    requests: float
    ttft: float
    itl: float | None
    usd_per_hour: float | None


@dataclass(frozen=True)
class _Batch:
    """What a data rank does that decodes at most so many requests at once.

    Attributes:
        plain: seconds between tokens where no prompt comes between.
        ttft: seconds of a prompt.
        steps: of an answer, after the token that its prompt writes.
    """

    size: int
    plain: float
    ttft: float
    steps: int

    @property
    def rate(self) -> float:
        """The most requests per second."""
        return self.size / (self.steps * self.plain + self.size * self.ttft)

    def between_tokens(self, rate: float) -> float:
        """Return the seconds between tokens with so many requests per second."""
        return self.plain / (1 - rate * self.ttft)

    def rate_within(self, itl: float) -> float:
        """Return the most requests per second with no more than `itl` seconds between tokens."""
        return min(self.rate, (1 - self.plain / itl) / self.ttft)


_EACH = 64
"""Batches up to this are tried one by one: on a processor a larger one may hold less there (`speed/processor.py`)."""


def answer(plan: DeploymentPlan, demand: Demand, times: Times) -> Answer | None:
    """Return how many replicas of this plan hold the demand, or None where none does."""
    if plan.verdict != PlanVerdict.FITS or plan.speed is None or not plan.speed.batches:
        return None
    if 0 < plan.max_model_len < demand.num_tokens:
        return None
    ttft, ranks = times.first_token(demand.input_tokens), plan.data_parallel_size
    most = min(plan.max_num_seqs, plan.kv_capacity_tokens // demand.num_tokens)
    if most < 1 or ttft > demand.ttft:
        return None
    if demand.output_tokens == 1:  # it ends with its prompt, one after the other
        return _answer(plan, demand, ranks / ttft, 1, ttft, None)

    def batch(size: int) -> _Batch:
        plain = times.between_tokens(size, demand.context)
        return _Batch(size, plain, ttft, demand.output_tokens - 1)

    def is_full(size: int) -> bool:
        each = batch(size)
        return each.rate_within(demand.itl) >= each.rate

    # A larger batch holds more and is slower, so that one size divides those that the limit leaves full from the others;
    # the next one holds the more, or the less, of what the limit leaves.
    largest = _last(0, most, is_full)
    ends = {size for size in (largest, largest + 1) if _EACH < size <= most}
    tried = [batch(size) for size in (*range(1, min(most, _EACH) + 1), *sorted(ends))]
    rate = max(each.rate_within(demand.itl) for each in tried)
    if rate <= 0:
        return None
    replicas = math.ceil(demand.requests / (rate * ranks))
    share = min(rate, demand.requests / replicas / ranks)
    usual = next(each for each in tried if each.rate_within(demand.itl) >= share)
    if usual.size > _EACH:
        size = 1 + _last(_EACH, usual.size - 1, lambda size: batch(size).rate < share)
        usual = batch(size)
    slowed = usual.between_tokens(share)
    return _answer(plan, demand, rate * ranks, usual.size * ranks, ttft, slowed)


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number that holds, or `low`."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _answer(
    plan: DeploymentPlan, demand: Demand, rate: float, batch: int, ttft: float, itl: float | None
) -> Answer:
    replicas = math.ceil(demand.requests / rate)
    price = None if plan.usd_per_hour is None else replicas * plan.usd_per_hour
    return Answer(plan, replicas, batch, rate, ttft, itl, price)


def why_nothing(plans: Sequence[DeploymentPlan], demand: Demand) -> str:
    """Return why none of the plans holds the demand, where one reason says it; else nothing."""
    tokens = f"a request of {demand.num_tokens:,} tokens"
    refused = [[each for each in plan.problems if each.refuses] for plan in plans]
    if is_too_long(plans):
        detail = next(each.detail for each in refused[0] if each.code == _LENGTH)
        return f"{tokens} is longer than the model's context: {detail}"
    details = [{each.detail for each in problems} for problems in refused]
    if common := sorted(set.intersection(*details)):
        return common[0]
    fitting = [plan for plan in plans if plan.verdict == PlanVerdict.FITS]
    if not fitting:
        return "it fits on none of these GPUs for sure"
    if all(plan.max_model_len < demand.num_tokens for plan in fitting):
        longest = max(plan.max_model_len for plan in fitting)
        return f"{tokens} is longer than the {longest:,} of --max-model-len"
    if not any(plan.speed is not None and plan.speed.batches for plan in fitting):
        return "the model generates no text"
    return "where it fits, it is slower than the limits of ttft and itl"


_LENGTH = "max-model-len"


def is_too_long(plans: Sequence[DeploymentPlan]) -> bool:
    """Whether all plans are refused because the model allows no such length."""
    return all(any(each.refuses and each.code == _LENGTH for each in p.problems) for p in plans)


def answers(
    plans: Sequence[DeploymentPlan], demand: Demand, times_of: Callable[[DeploymentPlan], Times]
) -> list[Answer]:
    """Return what holds the demand, of each GPU the two cheapest counts; without a price last."""
    judged = (answer(plan, demand, times_of(plan)) for plan in plans if plan.speed is not None)
    found = sorted(
        (each for each in judged if each is not None),
        key=lambda each: (
            math.inf if each.usd_per_hour is None else each.usd_per_hour,
            each.replicas * each.plan.gpu_count,
        ),
    )
    shown: Counter[str] = Counter()
    kept: list[Answer] = []
    for each in found:
        shown[each.plan.gpu_type] += 1
        kept += [each] if shown[each.plan.gpu_type] <= _MOST_COUNTS else []
    return kept


_MOST_COUNTS = 2


def as_json(each: Answer) -> dict[str, object]:
    """Return an answer as a script reads it."""
    return {
        "gpu_type": each.plan.gpu_type,
        "gpu_count": each.plan.gpu_count,
        "replicas": each.replicas,
        "requests_per_second_per_replica": each.requests,
        "requests_at_once_per_replica": each.batch,
        "ttft_seconds": each.ttft,
        "inter_token_seconds": each.itl,
        "usd_per_hour": each.usd_per_hour,
        "parameters": each.plan.parameters,
    }


def _between(each: Answer) -> str:
    return "none" if each.itl is None else words.seconds(each.itl)


_HEADS = ("GPUs", "replicas", "requests/s each", "at once", "TTFT", "ITL", "USD/h")


def table(found: Sequence[Answer], plans: Sequence[DeploymentPlan], demand: Demand) -> list[Text]:
    """Return the answers of these plans as lines."""
    model = plans[0].model or "the model"
    unknown = [p.gpu_type for p in plans if p.verdict == PlanVerdict.FITS and p.speed is None]
    lack = f"it fits {', '.join(unknown)}, whose speed is not estimated" if unknown else ""
    title = (
        f"{model} for {demand.requests:g} requests per second of {demand.input_tokens:,} + "
        f"{demand.output_tokens:,} tokens"
    )
    if not found:
        told = f"nothing holds that: {why_nothing(plans, demand)}"
        told = f"nothing is known to hold that: {lack}" if lack else told
        return [Text(harmless(f"{title}: {told}"), "bold")]
    rows = [
        (
            f"{each.plan.gpu_count} × {each.plan.gpu_type}", f"{each.replicas}", f"{each.requests:.2f}",
            f"{each.batch}", words.seconds(each.ttft), _between(each), words.usd(each.usd_per_hour),
        )
        for each in found
    ]  # fmt: skip
    is_shared = any(each.plan.gpu_type == "cpu" and each.replicas > 1 for each in found)
    notes = (
        "At the pessimistic end of each plan's speed; a replica's time is shared by prompts and decoding,",
        "and requests come evenly. requests/s each: the most that a replica holds; at once and ITL: with its",
        "share of the demand; USD/h: of all replicas.",
        *(
            ["Each replica on a CPU has a machine of its own: on one they share its cores."]
            if is_shared
            else []
        ),
        *(["An answer of one token has no time between tokens."] if found[0].itl is None else []),
        *([f"Not judged: {lack}."] if lack else []),
    )
    return [
        Text(harmless(title), "bold"), *align(_HEADS, rows, left=1), Text(),
        *(Text(f"  {note}", "dim") for note in notes),
    ]  # fmt: skip


def line(cheapest: CommandLine, width: int) -> list[Text]:
    """Return the flags with which all rows hold, and the command that asks for the first of them."""
    told = f"Each row is planned with {shlex.join(cheapest.flags)}. To ask for the first row:"
    pasted = cheapest.with_changes((), ())
    assert pasted is not None, "nothing changes"
    return [*wrapped(told, width, 0), Text(f"     {harmless(pasted)}", "cyan")]

"""Takes the measurements in turns: every contestant once in each round, and another one first in the next.

A measurement during which others used more than 8 % of a core, or before or after which the machine was slower than at
its best, is made again, and does not count if that does not help. Nor does one whose times say nothing.
One who fails is left out from there on, and the reason is kept.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.cpu.contestants import Contestant, InPython
from benchmarks.cpu.http_load import BadAnswer, Client
from benchmarks.cpu.offline import Unmeasured
from benchmarks.cpu.processes import Ended, await_ready, held_mb, peak_mb, started
from benchmarks.cpu.quiet import Watch
from benchmarks.cpu.report import Figures, Report
from benchmarks.cpu.shapes import PROMPT_TOKENS
from scripts.free_ports import free_port

OFFLINE = ("prefill 512", "decode 1", "decode 8", "decode 32")
HTTP = ("load", "second turn", "long prompt", "many")
"""Each with a server of its own round, whose start and memory are measured, too."""
FAILURES = (
    Ended,
    BadAnswer,
    OSError,
    ValueError,
    LookupError,
    ExceptionGroup,
    subprocess.SubprocessError,
    aiohttp.ClientError,
)
"""Of one contestant, beside which the others go on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured."""

    cases: Sequence[str]
    rounds: int
    attempts: int
    """Of a measurement that others disturb."""
    output_tokens: int
    num_requests: int


class Bench:
    """One run over one model after the other.

    Args:
        plan: what to measure.
        contestants: who takes part; those who fail are taken out.
        report: gets the figures.
        logs: folder for what the processes print.
    """

    def __init__(
        self, plan: Plan, contestants: Sequence[Contestant], report: Report, logs: Path
    ) -> None:
        self._plan, self._report, self._logs = plan, report, logs
        self._contestants = list(contestants)
        self._watch = Watch(slowest_pace=report.slowest_pace)
        self._model = ""

    @property
    def contestants(self) -> Sequence[Contestant]:
        """Those who have not failed."""
        return tuple(self._contestants)

    def prepare(self, name: str, model: Path) -> None:
        """Have everybody make the files that they read of a model."""
        self._model = name
        for each in self.contestants:
            self._guard(each, lambda: each.prepare(model))  # noqa: B023

    def measure(self, name: str, model: Path, vocab_size: int) -> None:
        """Measure one model with everybody."""
        self._model = name
        with ExitStack() as stack:
            self._offline_rounds(model, stack)
        if any(case in HTTP for case in self._plan.cases):
            for number in range(self._plan.rounds):
                for each in self._in_turn(number):
                    if each.server(model, 0) is not None:
                        self._guard(each, lambda: self._serve(each, model, vocab_size, number))  # noqa: B023

    def _offline_rounds(self, model: Path, stack: ExitStack) -> None:
        machine = self._open(_MACHINE, model, stack)
        cases = [case for case in OFFLINE if case in self._plan.cases]
        loaded: dict[str, Any] = {}
        for each in list(self._contestants) if cases else []:
            self._say("loads", each.name)
            self._guard(each, lambda: loaded.update({each.name: self._open(each, model, stack)}))  # noqa: B023
            if each.name in loaded:
                weights = loaded[each.name].weights_bytes
                self._report.note_weights(self._model, each.name, weights)
        for number in range(self._plan.rounds):
            self._record("machine", "limits", number, lambda: machine.ask("limits"))
            for case in cases:
                for each in self._in_turn(number):
                    run = self._offline_case(loaded[each.name], case)
                    self._guard(each, lambda: self._record(each.name, case, number, run))  # noqa: B023

    def _offline_case(self, loaded: Any, case: str) -> Callable[[], Figures]:
        kind, _, size = case.partition(" ")
        if kind == "prefill":
            return lambda: {"tokens_per_second": loaded.prefill(int(size))}
        output = self._plan.output_tokens
        return lambda: {
            "tokens_per_second": loaded.decode(int(size), PROMPT_TOKENS, output),
        }

    def _serve(self, each: Contestant, model: Path, vocab_size: int, number: int) -> None:
        port = free_port()
        server = each.server(model, port)
        assert server is not None, "the caller asked for one that has"
        command, variables = server
        log = self._log(each)
        with ExitStack() as stack:

            def start() -> Figures:
                begun = time.perf_counter()
                process = stack.enter_context(started(command, log, self._watch, variables))
                await_ready(port, process)
                held.append(process.pid)
                return {"ready_seconds": time.perf_counter() - begun}

            held: list[int] = []
            self._record(each.name, "start", number, start, attempts=1)
            client = Client(f"http://127.0.0.1:{port}/v1", vocab_size)
            cases: dict[str, Callable[[aiohttp.ClientSession], Any]] = {
                "load": lambda session: client.load(session, self._plan.num_requests),
                "second turn": client.second_turn,
                "long prompt": client.beside_a_long_prompt,
                "many": lambda session: client.many(session, lambda: held_mb(held[0])),
            }
            for case in self._plan.cases:
                if case in cases:
                    run = cases[case]
                    self._record(each.name, case, number, lambda: client.run(run))  # noqa: B023
            self._record(
                each.name, "memory", number, lambda: {"peak_mb": peak_mb(held[0])}, attempts=1
            )

    def _open(self, each: Contestant, model: Path, stack: ExitStack) -> Any:
        return stack.enter_context(each.offline(model, self._log(each), self._watch))

    def _record(
        self,
        name: str,
        case: str,
        number: int,
        run: Callable[[], Figures],
        *,
        attempts: int | None = None,
    ) -> None:
        reasons: list[str] = []

        def figures() -> Figures:
            try:
                return run()
            except Unmeasured as exc:
                reasons.append(str(exc))
                return {}

        found = self._watch.measure_quietly(figures, attempts or self._plan.attempts)
        self._report.add(self._model, name, case, number, found.result, found.others, found.pace)
        told = ", ".join(f"{key} {value:,.4g}" for key, value in found.result.items())
        told = told or reasons[-1]
        counts = "" if found.is_quiet and found.result else ": does not count"
        others = f"others {found.others:.0%} of a core, pace {found.pace:.0%}{counts}"
        self._say(f"{number + 1}/{self._plan.rounds} {case}", f"{name}: {told} ({others})")

    def _guard(self, each: Contestant, run: Callable[[], None]) -> None:
        """Run, and take the contestant out where that fails."""
        try:
            run()
        except FAILURES as exc:
            reason = f"{self._model}: {_told(exc)}"
            self._report.note_failure(each.name, reason)
            self._contestants.remove(each)
            self._say("failed", f"{each.name}: {reason}")

    def _in_turn(self, number: int) -> list[Contestant]:
        first = number % max(1, len(self._contestants))
        return self._contestants[first:] + self._contestants[:first]

    def _log(self, each: Contestant) -> Path:
        return self._logs / f"{self._model}-{each.name}.log"

    def _say(self, what: str, told: str) -> None:
        print(
            f"{time.strftime('%H:%M:%S')} {self._model} {what} {told}", file=sys.stderr, flush=True
        )


def _told(failure: BaseException) -> str:
    """Return what failed, of a process without the places of this machine."""
    if isinstance(failure, subprocess.CalledProcessError):
        return f"{Path(failure.cmd[0]).name} ended with {failure.returncode}"
    if isinstance(failure, subprocess.TimeoutExpired):
        return f"TimeoutExpired: {Path(failure.cmd[0]).name} took more than {failure.timeout} s"
    return f"{type(failure).__name__}: {failure}"


_MACHINE = InPython("machine", "limits", "torch")

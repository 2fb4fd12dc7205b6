"""What grammars cost: a step in which every sequence has one, beside one in which none has.

The model has random weights and a vocabulary of byte pairs, trained on the text files of a folder. A round
has steps of both kinds, one after the other in turns, in one engine; the ratio is of medians, by the clock and by
the processor's time. Every sequence has a schema of its own. Then the first token of a request with a schema that
nobody has seen, beside one without a schema.

A busy machine is refused (exit code 3): before each round its load may not be above --max-load, and a round during
which others used more than 8 % of a core is made again, --attempts times at most. The exit code is 1 where a step
with grammars takes more than 1.05 times one without, by the clock.

    OMP_NUM_THREADS=2 python benchmarks/structured_output.py --texts ../.. --rounds 15
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from exo_engine import LLM, SamplingParams
from exo_engine.core.request import EngineRequest
from exo_engine.structured_output import grammars
from exo_engine.structured_output.vocabulary import vocabulary_of
from exo_engine.tokenizer import Tokenizer
from quiet_rounds import EXIT_BUSY, BusyMachine, QuietRounds, add_arguments
from random_models import SIZES, write_model
from tokenizers import decoders, models, pre_tokenizers, trainers

BOUND = 1.05
"""What a step with grammars may take of one without, by the clock."""
_SUFFIXES = (".py", ".md", ".json", ".yaml", ".h", ".cpp", ".toml", ".txt")
_PROMPT = tuple(range(300, 316))
_MAX_MODEL_LEN = 512
_NUM_FIRST_TOKENS = 20
Seconds = tuple[float, float]
"""Of one step: by the clock, and by the processor's time."""
ByKind = dict[bool, list[Seconds]]
"""Without grammars, and with them."""


def main() -> int:
    """Print the figures; the exit code is 1 where the bound is passed, 3 on a busy machine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", default="135m", choices=tuple(SIZES))
    parser.add_argument("--texts", type=Path, required=True, help="folder of the training texts")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--steps", type=int, default=24, help="timed, of each round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--keep", type=Path, help="folder for the model, made unless it is there")
    add_arguments(parser)
    arguments = parser.parse_args()
    quiet = QuietRounds(arguments.max_load, arguments.attempts)
    with tempfile.TemporaryDirectory(prefix="structured-") as directory:
        model = _model(arguments.keep or Path(directory) / "model", arguments)
        try:
            report = _measure(model, arguments, quiet)
        except BusyMachine as exc:
            print(f"refused: {exc}", file=sys.stderr)
            return EXIT_BUSY
    print(json.dumps(report, indent=2))
    return int(report["step_ms"]["clock"]["ratio"] > BOUND)


def _model(directory: Path, arguments: argparse.Namespace) -> Path:
    if (directory / "tokenizer.json").exists():
        return directory
    config = SIZES[arguments.model]
    write_model(directory, config)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config["vocab_size"],
        min_frequency=1,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(arguments.texts), trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def _texts(folder: Path) -> Iterator[str]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith((".", "node_modules")))
        for name in sorted(files):
            if name.endswith(_SUFFIXES):
                yield (Path(root) / name).read_text(errors="ignore")


def _schema(seed: int) -> dict[str, Any]:
    """Return a schema of records, another one for each seed, whose answers have no end."""
    numbers = random.Random(seed)
    kinds = [
        {"type": "string"},
        {"type": "integer"},
        {"type": "boolean"},
        {"enum": [f"{seed}-{each}" for each in range(8)]},
        {"type": "string", "pattern": "^[a-z]{2,8}-[0-9]{4}$"},
        {"type": "array", "items": {"type": "number"}, "maxItems": 4},
    ]
    properties = {f"field_{seed}_{each}": numbers.choice(kinds) for each in range(6)}
    record = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "array", "items": record, "minItems": 1000}


def _params(seed: int, *, is_constrained: bool) -> SamplingParams:
    grammar = grammars.grammar(grammars.json_rule(_schema(seed))) if is_constrained else None
    return SamplingParams(seed=seed, ignore_eos=not is_constrained, structured_outputs=grammar)


class _Bench:
    """One engine, and requests that come and go."""

    def __init__(self, model: Path, arguments: argparse.Namespace) -> None:
        self._llm = LLM(
            model,
            device="cpu",
            dtype=arguments.dtype,
            max_model_len=_MAX_MODEL_LEN,
            max_num_seqs=arguments.sequences,
            enable_prefix_caching=False,
        )
        tokenizer, size = Tokenizer(model), self._llm.core.spec.vocab_size
        self.vocabulary = f"{tokenizer.vocabulary_size} of {size} tokens"
        self._llm.use_vocabulary(vocabulary_of(tokenizer, size))
        self._num_requests = 0

    def steps(self, seeds: range, num_steps: int, *, is_constrained: bool) -> list[Seconds]:
        """Return what each of some steps took, all requests being past their prompts."""
        ids = [self._add(_params(seed, is_constrained=is_constrained)) for seed in seeds]
        begun: set[str] = set()
        while len(begun) < len(ids):
            begun |= {output.request_id for output in self._llm.core.step() if output.token_ids}
        taken = []
        for _ in range(num_steps):
            clock, processor = time.perf_counter(), time.process_time()
            outputs = self._llm.core.step()
            taken.append((time.perf_counter() - clock, time.process_time() - processor))
            assert len(outputs) == len(ids), "a request has ended"
        self._llm.core.abort_requests(ids)
        return taken

    def first_token(self, seed: int, *, is_constrained: bool) -> Seconds:
        """Return the time from a request to its first token, nobody else being there."""
        params = _params(seed, is_constrained=is_constrained)
        clock, processor = time.perf_counter(), time.process_time()
        name = self._add(params)
        while not any(output.token_ids for output in self._llm.core.step()):
            pass
        taken = time.perf_counter() - clock, time.process_time() - processor
        self._llm.core.abort_requests([name])
        return taken

    def _add(self, params: SamplingParams) -> str:
        self._num_requests += 1
        name = str(self._num_requests)
        self._llm.core.add_request(EngineRequest(name, _PROMPT, params))
        return name

    def round(self, seeds: range, num_steps: int) -> ByKind:
        """Return steps of both kinds in turns, now the one first and now the other."""
        taken: ByKind = {False: [], True: []}
        for is_constrained in (False, True, True, False):
            taken[is_constrained] += self.steps(
                seeds, num_steps // 2, is_constrained=is_constrained
            )
        return taken

    def first_tokens(self, number: int) -> ByKind:
        """Return first tokens of both kinds in turns; each `number` has schemas that no other has."""
        taken: ByKind = {False: [], True: []}
        for seed in range(_NUM_FIRST_TOKENS):
            for is_constrained in (False, True):
                unseen = 10**6 + number * _NUM_FIRST_TOKENS + seed
                taken[is_constrained].append(
                    self.first_token(unseen, is_constrained=is_constrained)
                )
        return taken


def _measure(model: Path, arguments: argparse.Namespace, quiet: QuietRounds) -> dict[str, Any]:
    bench = _Bench(model, arguments)
    seeds = range(arguments.sequences)
    first_ever = bench.first_token(10**6 - 1, is_constrained=True)
    bench.round(seeds, arguments.steps)  # compiles the grammars
    rounds = [
        quiet.measure(lambda: bench.round(seeds, arguments.steps)) for _ in range(arguments.rounds)
    ]
    numbers = itertools.count()
    firsts = quiet.measure(lambda: bench.first_tokens(next(numbers)))
    steps = {kind: [each for found in rounds for each in found[kind]] for kind in (False, True)}
    return {
        "vocabulary": bench.vocabulary,
        "sequences": arguments.sequences,
        "rounds_rejected": quiet.num_rejected,
        "load": os.getloadavg()[0],
        "step_ms": _table(steps),
        "bound": BOUND,
        "first_token_ms": _table(firsts),
        "first_token_of_the_first_grammar_ms": round(1000 * first_ever[0], 1),
    }


def _table(taken: ByKind) -> dict[str, Any]:
    """Return medians by the clock and by the processor's time, and their ratios."""
    medians = {
        kind: [statistics.median(each[which] for each in values) for which in (0, 1)]
        for kind, values in taken.items()
    }
    return {
        name: {
            "free": round(1000 * medians[False][which], 3),
            "constrained": round(1000 * medians[True][which], 3),
            "ratio": round(medians[True][which] / medians[False][which], 4),
        }
        for which, name in enumerate(("clock", "processor"))
    }


if __name__ == "__main__":
    sys.exit(main())

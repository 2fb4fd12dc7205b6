"""However the engine is set up, every request gets the tokens of `transformers` and plain sampling.

A case takes one value of every axis. The default tests hold every pair of two settings' values, and every family
once; the slow ones every family with every value, too; `make test-equivalence` runs every case. In each case the
requests of `REQUESTS` run together, one for each sampling parameter, in float32, while NaN fills the
blocks that nobody holds, in this process or in the other one. An axis of one's own is an entry of
`AXES`: its values, and the engine's options for each.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exo_engine.config import EngineConfig, resolve
from exo_engine.core import executor_process
from exo_engine.core.memory import block_demand, cache_plan, fitting_block_size
from exo_engine.core.ranks import process as rank_processes
from exo_engine.llm import LLM
from exo_engine.models.config_file import limits_of, read_spec
from exo_engine.sampling_params import SamplingParams
from exo_engine.structured_output import grammars
from exo_engine.structured_output.vocabulary import Vocabulary

from ..pairwise import combinations, few_with_every_combination, few_with_everything
from .forking import Forking, poison

MOST_TOKENS = 10
VOCAB = 101
BASE = {"dtype": "float32", "device": "cpu", "max_model_len": 72}
# Every character that is printed is a token, and what JSON has most of, together.
TOKENS = (*(bytes([32 + n]) for n in range(95)), b'{"', b'":', b'",', b"12", b"true", b'"}')
RECORD = grammars.grammar(
    grammars.json_rule({"type": "object", "additionalProperties": {"type": ["integer", "boolean"]}})
)

AXES: dict[str, dict[str, dict[str, Any]]] = {
    "family": {
        "qwen3": {},
        "mistral-window": {},
        "qwen2-half-windowed": {},
        "qwen3.5": {},
        "qwen3-moe": {},
        "gemma4": {},
    },
    "block": {f"block-{size}": {"block_size": size} for size in (1, 2, 4, 8, 16, 32)},
    "prompts": {
        "whole": {},
        "chunked": {"max_num_batched_tokens": 9, "max_num_seqs": 5},
    },
    "prefixes": {
        "cached": {"enable_prefix_caching": True},
        "computed": {"enable_prefix_caching": False},
    },
    "steps": {
        "one-by-one": {},
        "ahead": {"async_scheduling": True},
    },
    "process": {
        "same": {},
        "other": {"executor_backend": "mp"},
    },
    "memory": {
        "plenty": {},
        "scarce": {"num_gpu_blocks_override": "as few as one sequence needs"},
    },
}

# Of each parameter one request at least, among them some that share a prompt.
REQUESTS: dict[str, tuple[int, dict[str, Any]]] = {
    "greedy": (60, {"temperature": 0.0}),
    "greedy-again": (60, {"temperature": 0.0}),
    "temperature": (17, {"temperature": 1.7}),
    "top-p": (33, {"top_p": 0.8}),
    "top-k": (4, {"top_k": 5, "temperature": 1.5}),
    "min-p": (33, {"min_p": 0.05}),
    "min-tokens": (17, {"min_tokens": 6, "stop_token_ids": tuple(range(50))}),
    "stop-tokens": (1, {"stop_token_ids": tuple(range(30))}),
    "presence": (17, {"temperature": 0.0, "presence_penalty": 2.0}),
    "frequency": (33, {"temperature": 0.0, "frequency_penalty": 2.0}),
    "repetition": (4, {"temperature": 0.0, "repetition_penalty": 1.9}),
    "bias": (17, {"logit_bias": {3: 8.0, 5: 7.0, 7: -100.0}}),
    "allowed": (33, {"allowed_token_ids": tuple(range(20, 60))}),
    "bad-words": (4, {"bad_words": tuple((a, b) for a in range(60) for b in range(0, VOCAB, 2))}),
    "logprobs": (17, {"logprobs": 3}),
    "prompt-logprobs": (33, {"prompt_logprobs": 1, "temperature": 0.0}),
    "grammar": (17, {"structured_outputs": RECORD}),
    "grammar-with-biases": (
        33,
        {
            "structured_outputs": RECORD,
            "temperature": 0.7,
            "top_p": 0.95,
            "logit_bias": {95: 3.0, 92: -2.0},
            "frequency_penalty": 1.0,
            "min_tokens": 3,
            "logprobs": 2,
        },
    ),
    "grammar-that-ends": (
        60,
        {"structured_outputs": grammars.grammar('"yes" | "n" /[o-q]{1,4}/'), "min_tokens": 9},
    ),
    "everything": (
        33,
        {
            "temperature": 1.4,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.001,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
            "repetition_penalty": 1.2,
            "logit_bias": {9: 2.0},
            "min_tokens": 3,
            "stop_token_ids": (1, 2, 3, 4),
            "allowed_token_ids": tuple(range(90)),
            "bad_words": ((5,), (6, 7)),
            "logprobs": 2,
        },
    ),
}

# The engine also runs where llguidance is not installed, and then has no grammars.
HAS_GRAMMARS = importlib.util.find_spec("llguidance") is not None
if not HAS_GRAMMARS:
    REQUESTS = {name: each for name, each in REQUESTS.items() if not name.startswith("grammar")}


Case = tuple[str, ...]
CASES: list[Case] = list(itertools.product(*AXES.values()))
FAMILY = list(AXES).index("family")


def held_by_default(case: Case) -> set[Any]:
    """Return a case's pairs of settings, and its family by itself."""
    return {*combinations(case[:FAMILY] + case[FAMILY + 1 :], 2), case[FAMILY]}


PAIRWISE = few_with_everything(CASES, held_by_default)
WITH_FAMILIES = [case for case in few_with_every_combination(CASES, 2) if case not in PAIRWISE]


def options_of(case: tuple[str, ...]) -> dict[str, Any]:
    options = dict(BASE)
    for axis, value in zip(AXES, case, strict=True):
        options.update(AXES[axis][value])
    return options


def fewest_blocks(path: Path, options: dict[str, Any]) -> int:
    """Return how many blocks one sequence needs, in all groups of the model's cache."""
    spec = read_spec(path)
    others = {key: value for key, value in options.items() if key != "num_gpu_blocks_override"}
    settings = resolve(EngineConfig(path, **others), limits_of(spec), has_cuda=False)
    settings = replace(settings, block_size=fitting_block_size(spec, settings))
    plan = cache_plan(spec, settings)
    return block_demand(plan, settings).most_blocks(settings.max_model_len)


def requests() -> tuple[list[tuple[int, ...]], list[SamplingParams]]:
    numbers = random.Random(7)
    prompts = {
        length: tuple(numbers.randrange(VOCAB) for _ in range(length))
        for length in (1, 4, 17, 33, 60)
    }
    params = [
        SamplingParams(max_tokens=MOST_TOKENS, seed=index, **fields)
        for index, (_, fields) in enumerate(REQUESTS.values())
    ]
    return [prompts[length] for length, _ in REQUESTS.values()], params


def compute(model, plain, prompt, params, guess=()) -> tuple[int, ...]:
    """Return what `transformers` and the plain sampler give, one request at a time.

    One pass tells the logits behind all tokens that are guessed, so that a right guess takes one, and a wrong one
    changes no token.
    """
    outputs: list[int] = []
    known = torch.empty(0, VOCAB)
    while len(outputs) < MOST_TOKENS and not set(outputs[-1:]) & set(params.stop_token_ids):
        if tuple(outputs) != guess[: len(outputs)]:
            guess, known = tuple(outputs), known[:0]
        if not len(known):
            ids = torch.tensor([[*prompt, *outputs, *guess[len(outputs) :]]])
            with torch.no_grad():
                known = model.oracle(ids).logits[0, len(prompt) + len(outputs) - 1 :]
        logits, known = known[:1], known[1:]
        if params.structured_outputs is not None:
            matcher = follow(params.structured_outputs, outputs)
            if matcher.is_stopped():
                break
            bits = np.unpackbits(
                np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little"
            )
            logits[0, bits[:VOCAB] == 0] = -torch.inf
        row = plain.SamplingRow(params, prompt, outputs, params.seed, params.stop_token_ids)
        outputs.append(plain.sample(logits.float(), [row])[0].token_id)
    return tuple(outputs)


def follow(grammar: str, outputs: list[int]) -> Any:
    """Return a matcher, made anew, after an answer's tokens."""
    import llguidance

    matcher = llguidance.LLMatcher(spelling(), grammar)
    assert matcher.consume_tokens(outputs), matcher.get_error()
    return matcher


@cache
def spelling() -> Any:
    """Return the tokens in the library's own form."""
    import llguidance

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Spelling()))


class Spelling:
    """The tokens in the form that llguidance takes, with an end that the model does not have."""

    tokens = (*TOKENS, b"<end>")
    special_token_ids = (VOCAB,)
    eos_token_id, bos_token_id = VOCAB, None

    def __call__(self, text):
        return []


@pytest.fixture(scope="session")
def expected(tiny_model, plain):
    """Return a function from a family, and guesses, to the tokens of each request."""
    found: dict[str, list[tuple[int, ...]]] = {}

    def of_family(family: str, guesses=None) -> list[tuple[int, ...]]:
        if family not in found:
            each = zip(*requests(), guesses or [()] * len(REQUESTS), strict=True)
            found[family] = [compute(tiny_model(family), plain, *request) for request in each]
        return found[family]

    return of_family


def unused_blocks(llm: LLM) -> list[int]:
    """Return the blocks that nobody holds and nobody can find."""
    pool = llm.core._scheduler.blocks._pool
    return [block for block in pool._free if block not in pool._key_of_block]


def poison_unused(llm: LLM, blocks: Callable[[], list[int]], monkeypatch) -> None:
    """Fill blocks with NaN before every step, in the process that computes it."""
    if isinstance(llm.core.executor, executor_process.ProcessExecutor):
        pack = executor_process.pack_frame
        monkeypatch.setattr(executor_process, "pack_frame", lambda frame: (blocks(), pack(frame)))
        return
    submit = llm.core.executor.submit

    def submit_poisoned(frame):
        poison(llm.core.executor.runner._cache, blocks())
        submit(frame)

    monkeypatch.setattr(llm.core.executor, "submit", submit_poisoned)


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    """What starts the other processes."""
    forking = Forking()
    yield forking
    forking.close()


@pytest.fixture
def start(tiny_model, forking, monkeypatch):
    """Return a function from a case, and blocks to poison if not the unused ones, to an engine."""
    monkeypatch.setattr(rank_processes, "subprocess", forking)
    started: list[LLM] = []

    def start(case: Case, blocks=unused_blocks) -> LLM:
        options = options_of(case)
        path = tiny_model(case[FAMILY]).path
        if "num_gpu_blocks_override" in options:
            options["num_gpu_blocks_override"] = fewest_blocks(path, options)
        llm = LLM(path, **options)
        started.append(llm)
        llm.use_vocabulary(Vocabulary(TOKENS, (), ()))
        poison_unused(llm, partial(blocks, llm), monkeypatch)
        return llm

    yield start
    for llm in started:  # also of a test that failed: what it leaves open would fail others
        llm.close()


def check(case: Case, start, expected) -> None:
    family, options = case[FAMILY], options_of(case)
    llm = start(case)
    prompts, params = requests()
    for _ in range(2 if options["enable_prefix_caching"] else 1):
        completions = llm.generate(prompts, params)
        found = {name: each.token_ids for name, each in zip(REQUESTS, completions, strict=True)}
        assert found == dict(zip(REQUESTS, expected(family, found.values()), strict=True))
    llm.core.check_integrity()
    llm.close()
    stats = llm.stats()
    assert stats.num_used_blocks == 0
    if options["enable_prefix_caching"] and "num_gpu_blocks_override" not in options:
        assert stats.prefix_cache_hits_total > 0 or llm.core.config.block_size > 16
    # Of large blocks, as those that hold a state, a sequence has enough from the start, or waits; windows
    # give theirs back.
    is_crowded = llm.core.config.block_size < 16 and family.startswith("qwen3")
    if "num_gpu_blocks_override" in options and is_crowded:
        assert stats.num_preemptions_total > 0


@pytest.mark.parametrize("case", PAIRWISE, ids="-".join)
def test_tokens_are_those_of_transformers(case, start, expected):
    check(case, start, expected)


@pytest.mark.slow
@pytest.mark.parametrize("case", WITH_FAMILIES, ids="-".join)
def test_tokens_of_every_family_are_those_of_transformers(case, start, expected):
    check(case, start, expected)


@pytest.mark.equivalence
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_tokens_are_those_of_transformers_in_every_case(case, start, expected):
    check(case, start, expected)


@pytest.mark.parametrize("process", AXES["process"])
def test_poison_in_a_block_that_is_held_changes_tokens(process, start, expected):
    """Poison that no step could feel would prove nothing."""
    case = ("qwen3", "block-16", "whole", "computed", "one-by-one", process, "plenty")

    def all_blocks(llm: LLM) -> list[int]:
        return list(range(llm.core.measurements.num_kv_blocks))

    llm = start(case, all_blocks)
    tokens = [each.token_ids for each in llm.generate(*requests())]
    llm.close()
    assert all(found != wanted for found, wanted in zip(tokens, expected("qwen3"), strict=True))


def test_the_default_cases_hold_every_pair_of_settings():
    """Counted from the axes, not from what chose the cases."""
    settings = [axis for axis in AXES if axis != "family"]
    found = [dict(zip(AXES, case, strict=True)) for case in PAIRWISE]
    assert {case["family"] for case in found} == set(AXES["family"])
    for one, other in itertools.combinations(settings, 2):
        together = {(case[one], case[other]) for case in found}
        assert together == set(itertools.product(AXES[one], AXES[other])), (one, other)
    assert len(found) <= 12, "blocks of six sizes with two values of something are twelve"


def test_the_slow_cases_add_every_pair_with_a_family():
    together, every = (
        set().union(*(combinations(case, 2) for case in cases))
        for cases in (PAIRWISE + WITH_FAMILIES, CASES)
    )
    assert together == every


def test_every_parameter_is_asked_for():
    """But `ignore_eos`, as no token ends an answer of these models: `core/test_scheduler.py` has it."""
    asked = {"seed", "max_tokens"}.union(*(given for _, given in REQUESTS.values()))
    known = {each.name for each in fields(SamplingParams)}
    without_grammars = set() if HAS_GRAMMARS else {"structured_outputs"}
    assert known - asked == {"ignore_eos"} | without_grammars


@pytest.mark.slow
def test_every_parameter_makes_a_difference(expected, tiny_model, plain):
    """A request whose parameter changed nothing would prove nothing."""
    tokens = dict(zip(REQUESTS, expected("qwen3"), strict=True))
    for name, prompt, params in zip(REQUESTS, *requests(), strict=True):
        without = SamplingParams(temperature=params.temperature, seed=params.seed)
        if name not in ("greedy", "greedy-again", "temperature", "logprobs", "prompt-logprobs"):
            assert tokens[name] != compute(tiny_model("qwen3"), plain, prompt, without), name
        if name in ("greedy", "grammar-with-biases", "everything"):
            wrong = (*tokens[name][:2], tokens[name][2] - 1)
            for guess in ((), wrong, tokens[name]):
                assert compute(tiny_model("qwen3"), plain, prompt, params, guess) == tokens[name]
    assert tokens["greedy"] == tokens["greedy-again"]
    assert 6 < len(tokens["min-tokens"]) <= MOST_TOKENS
    assert len(tokens["stop-tokens"]) < MOST_TOKENS
    assert not HAS_GRAMMARS or len(tokens["grammar-that-ends"]) < 6

"""A process that holds one model of one contestant, and times prompts and batches without HTTP.

    python offline.py exo-engine MODEL '{"quantization": "int4"}'

Run by path, as a contestant's environment has nothing of this repository. Each line on stdin is a list in JSON, the
answer a line: `["prefill", tokens]` and `["decode", batch, prompt, output]` are answered with tokens per second, or
with `{"unmeasured": reason}`, `["limits"]` (of the contestant `limits`) with what the machine gives.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from typing import Any, Protocol

_FIRST_TOKEN = 256
"""The tokens before it are bytes, and not all of them are text."""
_REPEATS = 2
MAX_MODEL_LEN, MAX_NUM_SEQS = 1024, 64


class Unmeasured(Exception):
    """What was timed says nothing of a speed; the reason."""


class ExoEngine:
    """The engine, in this process."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from exo_engine import LLM

        settings = {
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": MAX_NUM_SEQS,
            "kv_cache_bytes": 2**29,
        }
        settings |= {"device": "cpu", "dtype": "bfloat16", "enable_prefix_caching": False}
        self._core: Any = LLM(model, **{**settings, **options}).core
        self.vocab_size: int = self._core.spec.vocab_size
        self.weights_bytes: int | None = self._core.measurements.weights_bytes

    def add(self, name: str, prompt: list[int], output: int) -> None:
        """Put a request."""
        from exo_engine import SamplingParams
        from exo_engine.core.request import EngineRequest

        params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
        self._core.add_request(EngineRequest(name, tuple(prompt), params))

    def step(self) -> list[tuple[str, int]]:
        """Compute a step; return which request got how many tokens."""
        return [(each.request_id, len(each.token_ids)) for each in self._core.step()]

    def abort(self, names: list[str]) -> None:
        """Drop requests."""
        self._core.abort_requests(names)


class Vllm:
    """vLLM, in this process."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from vllm import LLM  # type: ignore[import-not-found,unused-ignore]

        settings = {
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": MAX_NUM_SEQS,
            "dtype": "bfloat16",
        }
        llm = LLM(model, enable_prefix_caching=False, **{**settings, **options})
        self._engine = llm.llm_engine
        self.vocab_size: int = llm.get_tokenizer().vocab_size
        self.weights_bytes: int | None = None
        self._seen: dict[str, int] = {}

    def add(self, name: str, prompt: list[int], output: int) -> None:
        """Put a request."""
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)

    def step(self) -> list[tuple[str, int]]:
        """Compute a step; return which request got how many tokens."""
        found = []
        for each in self._engine.step():
            total = len(each.outputs[0].token_ids)
            found.append((each.request_id, total - self._seen.get(each.request_id, 0)))
            self._seen[each.request_id] = total
        return found

    def abort(self, names: list[str]) -> None:
        """Drop requests."""
        self._engine.abort_request(names)


class StepEngine(Protocol):
    """An engine that computes step by step."""

    vocab_size: int
    weights_bytes: int | None

    def add(self, name: str, prompt: list[int], output: int) -> None:
        """Put a request for so many tokens."""

    def step(self) -> list[tuple[str, int]]:
        """Compute a step; return which request got how many tokens."""

    def abort(self, names: list[str]) -> None:
        """Drop requests."""


class Stepwise:
    """Times an engine that computes step by step."""

    def __init__(self, engine: StepEngine) -> None:
        self._engine, self._numbers, self._count = engine, random.Random(0), 0
        self.weights_bytes = engine.weights_bytes
        self.decode(2, 16, 4)  # warms up

    def prefill(self, tokens: int) -> float:
        """Return prompt tokens per second."""
        seconds = []
        for _ in range(_REPEATS):
            begun = time.perf_counter()
            name = self._add(tokens, 1)
            self._run({name: 1}, most=1)
            seconds.append(time.perf_counter() - begun)
        return tokens / statistics.median(seconds)

    def decode(self, batch: int, prompt: int, output: int) -> float:
        """Return tokens per second of all sequences together, from when each has a token until each has `output` more.

        None ends meanwhile: an engine that lets answers go on beside prompts would have few left by then.
        """
        most = MAX_MODEL_LEN - prompt
        names = [self._add(prompt, most) for _ in range(batch)]
        had = self._run(dict.fromkeys(names, 1), most)
        begun = time.perf_counter()
        has = self._run({name: num + output for name, num in had.items()}, most, had)
        seconds = time.perf_counter() - begun
        self._engine.abort(names)
        return (sum(has.values()) - sum(had.values())) / seconds

    def _add(self, tokens: int, output: int) -> str:
        self._count += 1
        last = self._engine.vocab_size - 2
        prompt = [self._numbers.randint(_FIRST_TOKEN, last) for _ in range(tokens)]
        self._engine.add(str(self._count), prompt, output)
        return str(self._count)

    def _run(
        self, wanted: dict[str, int], most: int, had: dict[str, int] | None = None
    ) -> dict[str, int]:
        """Step until each has as many tokens as are wanted of it; return how many it has.

        Raises:
            ValueError: one had `most`, all that it asked for, before.
        """
        total = had.copy() if had else dict.fromkeys(wanted, 0)
        while any(total[name] < number for name, number in wanted.items()):
            if max(total.values()) >= most:
                raise ValueError("a sequence ended before others had their tokens")
            for name, number in self._engine.step():
                # vLLM may lengthen the name, and tell once more of one that was dropped.
                if (own := name.partition("-")[0]) in total:
                    total[own] += number
        return total


class Transformers:
    """`generate` of transformers, a batch of equal lengths."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16, **options
        ).eval()
        self._torch = torch
        self.weights_bytes = None

    def prefill(self, tokens: int) -> float:
        """Return prompt tokens per second."""
        seconds = statistics.median(self._generate(1, tokens, 1) for _ in range(_REPEATS))
        return tokens / seconds

    def decode(self, batch: int, prompt: int, output: int) -> float:
        """Return tokens per second after the first of each.

        Raises:
            Unmeasured: the prompts alone took as long as all together.
        """
        first = self._generate(batch, prompt, 1)
        whole = self._generate(batch, prompt, output)
        if whole <= first:
            raise Unmeasured(
                f"{output} tokens took {whole:.3f} s, and the first alone {first:.3f} s before"
            )
        return batch * (output - 1) / (whole - first)

    def _generate(self, batch: int, prompt: int, output: int) -> float:
        last = self._model.config.vocab_size - 1
        tokens = self._torch.randint(_FIRST_TOKEN, last, (batch, prompt))
        begun = time.perf_counter()
        made = self._model.generate(
            tokens,
            attention_mask=self._torch.ones_like(tokens),
            max_new_tokens=output,
            min_new_tokens=output,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert made.shape[1] == prompt + output, "an early end"
        return time.perf_counter() - begun


class Machine:
    """What all threads read from memory, and how fast products of matrices are."""

    weights_bytes = None

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        del model, options

    def limits(self) -> dict[str, float]:
        """Return bytes, or operations, per second, the best of some tries each."""
        import torch

        numbers = torch.ones(2**27, dtype=torch.int64)
        matrix, size = torch.randn(2048, 2048), 2 * 2048**3
        # Where the processor is held to less, PyTorch takes a hundred times as long in bf16.
        plain = matrix.to(torch.float32 if os.environ.get("ONEDNN_MAX_CPU_ISA") else torch.bfloat16)
        found = {
            "read_bytes": numbers.nbytes / _least(numbers.sum),
            "bf16": size / _least(lambda: plain @ plain),
        }
        eighths = (matrix * 20).to(torch.int8)
        try:
            products = size / _least(lambda: torch._int_mm(eighths, eighths))
        except RuntimeError:  # not in this build
            products = 0.0
        # Numbers of 8 bits can be multiplied as those of 16.
        return {**found, "int8": max(products, found["bf16"]), **_of_engine()}


def _of_engine() -> dict[str, float]:
    """Return what the engine itself says of the machine, which the planner's estimate rests on."""
    from exo_engine.machine import measure

    found = measure()
    operations = {f"engine_{kind}": rate for kind, rate in found.operations.items()}
    return {"engine_read_bytes": found.read_bytes, **operations}


def _least(run: Any) -> float:
    seconds = []
    for _ in range(6):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


KINDS: dict[str, Any] = {
    "exo-engine": lambda *given: Stepwise(ExoEngine(*given)),
    "vllm": lambda *given: Stepwise(Vllm(*given)),
    "transformers": Transformers,
    "limits": Machine,
}


def main() -> int:
    """Load, then answer line by line."""
    kind, model, options = sys.argv[1:4]
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    worker = KINDS[kind](model, json.loads(options))
    print(json.dumps({"weights_bytes": worker.weights_bytes}), file=answers, flush=True)
    for line in sys.stdin:
        name, *words = json.loads(line)
        try:
            answer = getattr(worker, name)(*words)
        except Unmeasured as exc:
            answer = {"unmeasured": str(exc)}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

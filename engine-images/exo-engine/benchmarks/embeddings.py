"""How fast texts are embedded, beside `transformers` on the same random weights, on the CPU.

A round embeds 32 texts with the engine's core and with `transformers`, one after the other in turns, in one
process and with the same threads: once all of 256 tokens, once of 16 to 256 tokens, which `transformers` pads.
The ratio is of medians, by the clock and by the processor's time: 1.0 or more, the engine is as fast. Both get
token ids, and the vectors of the first round are compared.

A busy machine is refused (exit code 3): before each round its load may not be above --max-load, and a round during
which others used more than 8 % of a core is made again, --attempts times at most. The exit code is 1 where the bound
is missed.

    OMP_NUM_THREADS=2 python benchmarks/embeddings.py --model bge-small --rounds 7
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from exo_engine.config import EngineConfig
from exo_engine.core.pooling.core import PoolingCore
from exo_engine.core.pooling.requests import PoolingRequest
from quiet_rounds import EXIT_BUSY, BusyMachine, QuietRounds, add_arguments

BOUND = 1.0
"""Ratio at which the engine is as fast."""
_LEAST_COSINE = {"float32": 0.99999, "bfloat16": 0.99}
_ENCODER = {"vocab_size": 30522, "max_position_embeddings": 514}
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    # Class, sizes, pooling: the shapes of BGE small and base, multilingual E5 small, Qwen3-Embedding 0.6B.
    "bge-small": (
        "BertModel",
        {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12},
        "CLS",
    ),
    "bge-base": ("BertModel", {}, "CLS"),
    "e5-small": (
        "XLMRobertaModel",
        {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12},
        "MEAN",
    ),
    "qwen3": (
        "Qwen3Model",
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
        "LAST",
    ),
}
Tokens = list[tuple[int, ...]]


class Bench:
    """The same model twice, and the texts that both embed."""

    def __init__(self, directory: Path, arguments: argparse.Namespace) -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        kind, sizes, self._pooling = MODELS[arguments.model]
        self._is_decoder = kind.startswith("Qwen")
        config = getattr(transformers, kind.replace("Model", "Config"))(**{**_ENCODER, **sizes})
        torch.manual_seed(0)
        self._oracle = getattr(transformers, kind)(config).eval()
        self._oracle.save_pretrained(directory)
        self._oracle = self._oracle.to(getattr(torch, arguments.dtype))
        pooler = {"pooling_type": self._pooling}
        self._core = PoolingCore(
            EngineConfig(directory, device="cpu", dtype=arguments.dtype, pooler=pooler)
        )
        numbers = random.Random(0)
        lengths = [arguments.tokens] * arguments.texts
        mixed = [numbers.randint(16, arguments.tokens) for _ in lengths]
        self.cases = {
            name: [tuple(numbers.randrange(10, 30000) for _ in range(length)) for length in each]
            for name, each in (("equal", lengths), ("mixed", mixed))
        }

    def by_engine(self, texts: Tokens) -> torch.Tensor:
        """Embed with the engine: (S, E)."""
        for index, text in enumerate(texts):
            self._core.add_request(PoolingRequest(str(index), text))
        found: dict[str, bytes] = {}
        while self._core.has_unfinished_requests():
            found |= {each.request_id: each.pooled or b"" for each in self._core.step()}
        rows = [
            torch.frombuffer(bytearray(found[str(i)]), dtype=torch.float32)
            for i in range(len(texts))
        ]
        return torch.stack(rows)

    @torch.inference_mode()
    def by_transformers(self, texts: Tokens) -> torch.Tensor:
        """Embed with `transformers`, padded to one length at the end: (S, E)."""
        longest = max(map(len, texts))
        ids = torch.tensor([[*text, *[1] * (longest - len(text))] for text in texts])
        lengths = torch.tensor([len(text) for text in texts])
        mask = (torch.arange(longest) < lengths[:, None]).long()
        states = self._oracle(ids, attention_mask=mask).last_hidden_state
        if self._pooling == "MEAN":
            pooled = (states * mask[..., None]).float().sum(1) / lengths[:, None]
        else:
            rows = torch.zeros_like(lengths) if self._pooling == "CLS" else lengths - 1
            pooled = states[torch.arange(len(texts)), rows].float()
        return torch.nn.functional.normalize(pooled, dim=1)

    def least_cosine(self) -> float:
        """Return how alike the vectors of both are at least."""
        cosines = [
            (self.by_engine(texts) * self.by_transformers(texts)).sum(1).min()
            for texts in self.cases.values()
        ]
        return float(min(cosines))

    def round(self) -> dict[str, float]:
        """Measure once, in milliseconds, by the clock and by the processor's time."""
        found = {}
        for case, texts in self.cases.items():
            for side, embed in (("engine", self.by_engine), ("transformers", self.by_transformers)):
                wall, own = _timed(lambda embed=embed, texts=texts: embed(texts))
                found |= {f"{case} {side} wall": wall, f"{case} {side} cpu": own}
        return found


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    wall, own = time.perf_counter(), time.process_time()
    work()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - own)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", default="bge-small", choices=tuple(MODELS))
    parser.add_argument("--dtype", default="float32", choices=tuple(_LEAST_COSINE))
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    add_arguments(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="embeddings-") as directory:
        bench = Bench(Path(directory), arguments)
        cosine = bench.least_cosine()  # warms up, too
        quiet = QuietRounds(arguments.max_load, arguments.attempts)
        try:
            rounds = [quiet.measure(bench.round) for _ in range(arguments.rounds)]
        except BusyMachine as exc:
            print(f"refused: {exc}", file=sys.stderr)
            return EXIT_BUSY
    medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    ratios = {
        f"{case} {clock}": medians[f"{case} transformers {clock}"]
        / medians[f"{case} engine {clock}"]
        for case in bench.cases
        for clock in ("wall", "cpu")
    }
    report = {
        **vars(arguments),
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "rounds_rejected": quiet.num_rejected,
        "load_average": round(os.getloadavg()[0], 1),
        "least_cosine": cosine,
        "milliseconds": {key: round(value, 1) for key, value in medians.items()},
        "ratios": {key: round(value, 3) for key, value in ratios.items()},
        "bound": BOUND,
    }
    print(json.dumps(report, indent=2))
    is_alike = cosine >= _LEAST_COSINE[arguments.dtype]
    return 0 if is_alike and ratios["equal wall"] >= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())

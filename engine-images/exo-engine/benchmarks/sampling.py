"""What it takes to choose the tokens of a step on the CPU, by the compiled kernels and by PyTorch.

Rounds alternate between both, on the same logits (normal numbers, spread 3). Told are medians of the
processor's time in milliseconds, which others on the machine disturb less than the clock.

    python benchmarks/sampling.py --rounds 15
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from exo_engine.kernels.library import VARIABLE, chosen_kernels
from exo_engine.sampling.sampler import sample
from exo_engine.sampling.state import SamplingState
from exo_engine.sampling_params import SamplingParams

_CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {"temperature": 1.0},
    "temperature 0.7, top-p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "temperature 1, top-k 50": {"temperature": 1.0, "top_k": 50},
    "temperature 1, min-p 0.05": {"temperature": 1.0, "min_p": 0.05},
}
_WAYS = {"PyTorch": "off", "kernels": "auto"}


def _state(way: str, num_rows: int, vocab_size: int, params: dict[str, Any]) -> SamplingState:
    os.environ[VARIABLE] = _WAYS[way]
    state = SamplingState(num_rows, vocab_size, torch.device("cpu"))
    for slot in range(num_rows):
        state.add(slot, SamplingParams(**params), key=slot)
    return state


def _measure(
    num_rows: int, params: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, float]:
    logits = 3 * torch.randn(num_rows, arguments.vocab_size)
    states = {way: _state(way, num_rows, arguments.vocab_size, params) for way in _WAYS}
    taken: dict[str, list[float]] = {way: [] for way in _WAYS}
    for number in range(arguments.rounds + 1):
        for way in sorted(_WAYS, reverse=number % 2 == 1):
            copy = logits.clone()  # it is overwritten
            begun = time.process_time()
            sample(copy, states[way], np.arange(num_rows))
            if number:  # the first round warms up
                taken[way].append(1000 * (time.process_time() - begun))
    medians = {way: round(statistics.median(each), 2) for way, each in taken.items()}
    return {**medians, "ratio": round(medians["kernels"] / medians["PyTorch"], 3)}


def main() -> int:
    """Print the times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    kernels = chosen_kernels()
    if kernels is None:
        sys.exit("there are no kernels")
    kernels.set_num_threads(torch.get_num_threads())
    report: dict[str, Any] = {**vars(arguments), "threads": torch.get_num_threads()}
    with torch.inference_mode():
        for num_rows in (1, 8, 32):
            for name, params in _CASES.items():
                report[f"{num_rows} rows, {name}"] = _measure(num_rows, params, arguments)
    report["load_average"] = round(os.getloadavg()[0], 1)
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The parts of `gpu_check.py`: each is a function from a setting to rows, and runs in a process of its own.

    python gpu_parts.py NAME --device cuda [--small]      prints rows, one JSON object per line

A row that says `ok: false` is something that is wrong, one with `refused` that the engine does not do this on such
a device and why; the rest are figures.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu.equality import check_equality
from gpu.matrices import check_matrices, time_matrices
from gpu.products import check_products, time_products
from gpu.setting import Setting
from gpu.variants import check_variants
from random_models import GPU_SIZES, SIZES, fill_randomly, write_config

Row = dict[str, Any]

_STEP_TOKENS, _IDLE_TOKENS = 40, 24
"""Tokens that each sequence gets where steps are timed, and where idle time is."""
_CHECKING_SECONDS = 55.0
"""After which no other case of attention is begun."""
_UNEVEN_STEPS = 3
"""The first ones of a batch, which are not counted."""


def check_kernels(setting: Setting) -> Iterator[Row]:
    """Hold attention equal to float64 on random steps; fresh ones each time."""
    from attention_cases import random_case

    first, begun = random.SystemRandom().randrange(2**31), time.monotonic()
    for seed in range(first, first + (2 if setting.is_small else 60)):
        if time.monotonic() - begun > _CHECKING_SECONDS:
            break  # most of it is compilation
        case = random_case(seed, setting.device)
        row: Row = {
            "check": "attention",
            "seed": seed,
            "ok": True,
            "kv": case.kv,
            "dtype": str(case.dtype),
            "prompts": "in place" if case.way is None else case.way.name,
        }
        try:
            case.check(seed)
        except Exception as exc:  # the next case is to be tried, too
            row |= {
                "ok": False,
                "error": f"{type(exc).__name__}: {exc}"[:500],
                "layer": str(case.layer),
            }
        yield row


def measure_limits(setting: Setting) -> Iterator[Row]:
    """Measure what the device can do: copying, and products."""
    size = 2**20 if setting.is_small else 2**30
    source = torch.empty(size, dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    seconds = setting.seconds(lambda: target.copy_(source))
    yield {"limit": "copy", "bytes_per_second": 2 * size / seconds}
    for dtype in (torch.bfloat16, torch.float32):
        side = 128 if setting.is_small else 8192
        one = torch.randn(side, side, device=setting.device).to(dtype)
        seconds = setting.seconds(lambda one=one: one @ one, times=5)
        yield {"limit": f"matmul {dtype}", "operations_per_second": 2 * side**3 / seconds}


def check_and_time_matrices(setting: Setting) -> Iterator[Row]:
    """Hold products with 4-bit codes, FP8 and many experts equal to float64, and time them beside plain ones."""
    count = 3 if setting.is_small else 12
    for check in (check_matrices, check_products):
        yield from check(setting.device, count)
    for take_times in (time_matrices, time_products):
        yield from take_times(setting.device, setting.seconds, is_small=setting.is_small)


def measure_speed(
    setting: Setting,
    size: str,
    quantization: str | None = None,
    kv: str = "auto",
    *,
    is_fixed: bool = False,
) -> Iterator[Row]:
    """Time prompts and steps of single tokens, with weights made on the device."""
    from exo_engine import LLM
    from exo_engine.core import loading
    from exo_engine.errors import ConfigurationError

    config = SIZES["tiny"] if setting.is_small else GPU_SIZES[size]
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as directory:
        write_config(Path(directory), config)
        loading.load_decoder = fill_randomly
        begun = time.perf_counter()
        try:
            llm = LLM(
                directory,
                device=setting.device.type,
                dtype="bfloat16" if setting.device.type == "cuda" else "float32",
                quantization=quantization,
                kv_cache_dtype=kv,
                batch_invariant=is_fixed,
                max_model_len=1024 if setting.is_small else 4096,
                max_num_seqs=4 if setting.is_small else 256,
                enable_prefix_caching=False,
            )
        except ConfigurationError as exc:
            # What a format says of a device; any other setting that is refused is a fault of this script.
            if exc.param != "quantization":
                raise
            yield {"refused": str(exc)}
            return
        ready = time.perf_counter() - begun
    weights = llm.core.measurements.weights_bytes
    per_token = llm.core.measurements.kv_bytes_per_token
    item = 2 if setting.device.type == "cuda" else 4
    # A table that is no head, too: a step reads some rows of it.
    unread = (
        0 if config["tie_word_embeddings"] else item * config["vocab_size"] * config["hidden_size"]
    )
    size = size if quantization is None else f"{size} {quantization}"
    size = f"{size} batch-invariant" if is_fixed else size
    yield {
        "model": size,
        "ready_seconds": ready,
        "weights_bytes": weights,
        "kv_bytes_per_token": per_token,
    }
    large = (1, 32, 256) if quantization or is_fixed else (1, 32, 256, 8, 64, 128)
    for batch in (1, 4) if setting.is_small else large:
        context = 64 if setting.is_small else 1024
        seconds, held = time_steps(llm, config["vocab_size"], batch, context)
        if seconds is None:
            yield {"model": size, "does_not_fit": batch, "context": context, "sequences_that_fit": held}  # fmt: skip
            continue
        least = weights - unread + batch * context * per_token
        yield {
            "model": size, "sequences": batch, "context": context, "step_seconds": seconds,
            "tokens_per_second": batch / seconds, "bytes_read": least, "bytes_per_second": least / seconds,
        }  # fmt: skip
    for length in (64, 256) if setting.is_small else (2048, 512, 128):
        seconds = _prompt_seconds(llm, config["vocab_size"], length)
        yield {
            "model": size,
            "prompt": length,
            "seconds": seconds,
            "tokens_per_second": length / seconds,
        }
    if quantization is None and not is_fixed:
        requests = mixed_requests(config["vocab_size"], is_small=setting.is_small)
        seconds, num_tokens = _mixed_seconds(llm, requests)
        yield {
            "model": size,
            "mixed_requests": len(requests),
            "seconds": seconds,
            "tokens_per_second": num_tokens / seconds,
        }
    batch, context = (4, 64) if setting.is_small else (32, 1024)
    batch = min(batch, sequences_that_fit(llm, context + _IDLE_TOKENS))
    share = _idle_share(llm, setting, config["vocab_size"], batch, context)
    if share is not None:
        yield {"model": size, "idle_at": batch, "idle_share": share}


def mixed_requests(vocab_size: int, *, is_small: bool) -> list[tuple[list[int], int]]:
    """Return prompts of many lengths, each with how many tokens are to follow; always the same ones."""
    numbers = random.Random(5)
    count, longest, most = (6, 60, 6) if is_small else (256, 1024, 48)
    return [
        (
            [numbers.randrange(vocab_size) for _ in range(numbers.randint(longest // 16, longest))],
            numbers.randint(most // 4, most),
        )
        for _ in range(count)
    ]


def batches_by_length(
    requests: list[tuple[list[int], int]], size: int
) -> Iterator[list[tuple[list[int], int]]]:
    """Yield requests in batches, sorted by the length of their prompts: so a batch has the least padding."""
    ordered = sorted(requests, key=lambda request: len(request[0]))
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


def measure_fixed(setting: Setting) -> Iterator[Row]:
    """Time what bits that depend on no neighbour cost; a CPU keeps them in other ways."""
    is_cuda = setting.device.type == "cuda"
    yield from measure_speed(setting, "llama-3.1-8b", is_fixed=is_cuda)


def measure_transformers(setting: Setting, size: str) -> Iterator[Row]:
    """Time `transformers` in the same steps: the same shape, weights of its own."""
    import transformers

    config = SIZES["tiny"] if setting.is_small else GPU_SIZES[size]
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as directory:
        write_config(Path(directory), config)
        loaded = transformers.AutoConfig.from_pretrained(directory)
    torch.set_default_dtype(torch.bfloat16 if setting.device.type == "cuda" else torch.float32)
    with torch.device(setting.device):
        model = transformers.AutoModelForCausalLM.from_config(loaded).eval()
    context, new = (64, 4) if setting.is_small else (1024, 32)
    for batch in (1, 4) if setting.is_small else (1, 32):
        prompt = torch.randint(0, config["vocab_size"], (batch, context), device=setting.device)
        seconds = []
        for count in (1, 1, new + 1):
            setting.wait()
            begun = time.perf_counter()
            model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, min_new_tokens=count,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip
            setting.wait()
            seconds.append(time.perf_counter() - begun)
        step = (seconds[2] - seconds[1]) / new
        yield {"transformers": size, "sequences": batch, "context": context, "step_seconds": step, "tokens_per_second": batch / step}  # fmt: skip
    requests = mixed_requests(config["vocab_size"], is_small=setting.is_small)
    setting.wait()
    begun = time.perf_counter()
    for batch_of in batches_by_length(requests, 32):
        longest, most = max(len(p) for p, _ in batch_of), max(n for _, n in batch_of)
        rows = [[0] * (longest - len(p)) + p for p, _ in batch_of]
        seen = [[0] * (longest - len(p)) + [1] * len(p) for p, _ in batch_of]
        model.generate(
            torch.tensor(rows, device=setting.device), attention_mask=torch.tensor(seen, device=setting.device),
            max_new_tokens=most, min_new_tokens=most, do_sample=False, pad_token_id=0,
        )  # fmt: skip
    setting.wait()
    taken = time.perf_counter() - begun
    wanted = sum(count for _, count in requests)
    yield {
        "transformers": size,
        "mixed_requests": len(requests),
        "seconds": taken,
        "tokens_per_second": wanted / taken,
    }


def _mixed_seconds(llm: Any, requests: list[tuple[list[int], int]]) -> tuple[float, int]:
    """Answer all requests; return the time and the number of tokens."""
    from exo_engine import SamplingParams

    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for _, n in requests]
    begun = time.perf_counter()
    found = llm.generate([prompt for prompt, _ in requests], params)
    return time.perf_counter() - begun, sum(len(each.token_ids) for each in found)


def sequences_that_fit(llm: Any, num_tokens: int) -> int:
    """Return how many sequences of so many tokens the cache holds at once, as far as its size tells."""
    found = llm.core.measurements
    blocks_each = -(-num_tokens // found.kv_block_size)
    return int(found.kv_capacity_tokens // found.kv_block_size // blocks_each)


def _idle_share(
    llm: Any, setting: Setting, vocab_size: int, batch: int, context: int
) -> float | None:
    """Return which part of steps of single tokens the device stands idle; None if they are never all computed at once."""
    from exo_engine import SamplingParams
    from exo_engine.core.request import EngineRequest

    numbers, core = random.Random(batch), llm.core
    params = SamplingParams(temperature=0.0, max_tokens=_IDLE_TOKENS, ignore_eos=True)
    for index in range(batch):
        prompt = tuple(numbers.randrange(vocab_size) for _ in range(context))
        core.add_request(EngineRequest(f"idle-{batch}-{index}", prompt, params))
    is_decoding = False
    while not is_decoding:
        if not core.has_unfinished_requests():
            return None
        is_decoding = sum(len(output.token_ids) for output in core.step()) == batch

    def decode() -> None:
        for _ in range(16):
            core.step()

    spans = busy_spans(llm, decode, is_cuda=setting.device.type == "cuda")
    while core.has_unfinished_requests():
        core.step()
    return idle_share(spans)


def time_steps(llm: Any, vocab_size: int, batch: int, context: int) -> tuple[float | None, int]:
    """Return the median time of steps in which all sequences get a token, and how many the cache held at once.

    Where it holds fewer the time is None; and where its size tells so, nothing is computed for it.
    """
    from exo_engine import SamplingParams
    from exo_engine.core.request import EngineRequest

    held = sequences_that_fit(llm, context + _STEP_TOKENS)
    if held < batch:
        return None, held
    core = llm.core
    params = SamplingParams(temperature=0.0, max_tokens=_STEP_TOKENS, ignore_eos=True)
    numbers = random.Random(batch)
    for index in range(batch):
        prompt = tuple(numbers.randrange(vocab_size) for _ in range(context))
        core.add_request(EngineRequest(f"{batch}-{index}", prompt, params))
    seconds: dict[int, list[float]] = {}
    while core.has_unfinished_requests():
        begun = time.perf_counter()
        outputs = core.step()
        elapsed = time.perf_counter() - begun
        seconds.setdefault(sum(len(output.token_ids) for output in outputs), []).append(elapsed)
    held = max((count for count, found in seconds.items() if len(found) > _UNEVEN_STEPS), default=0)
    if held < batch:
        return None, held
    return statistics.median(seconds[batch][_UNEVEN_STEPS:]), held


def _prompt_seconds(llm: Any, vocab_size: int, length: int) -> float:
    from exo_engine import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1)
    seconds = []
    for attempt in range(5):
        numbers = random.Random(attempt)
        prompt = [numbers.randrange(vocab_size) for _ in range(length)]
        begun = time.perf_counter()
        llm.generate([prompt], params)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])


PARTS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "kernels": check_kernels,
    "limits": measure_limits,
    "matrices": check_and_time_matrices,
    "llama-3.1-8b": lambda setting: measure_speed(setting, "llama-3.1-8b"),
    "llama-3.1-8b-int4": lambda setting: measure_speed(setting, "llama-3.1-8b", "int4"),
    "llama-3.1-8b-fp8": lambda setting: measure_speed(setting, "llama-3.1-8b", "fp8", "fp8"),
    "llama-3.1-8b-batch-invariant": measure_fixed,
    "equality": lambda setting: check_equality(setting.device.type),
    "variants": lambda setting: check_variants(setting.device.type),
    "qwen3-0.6b": lambda setting: measure_speed(setting, "qwen3-0.6b"),
    "transformers": lambda setting: measure_transformers(setting, "llama-3.1-8b"),
}


Span = tuple[float, float]


def idle_share(spans: Iterable[Span]) -> float:
    """Return which part of the time from the first begin to the last end is in no span; they may overlap."""
    ordered = sorted(spans)
    begin = reached = ordered[0][0]
    idle = 0.0
    for start, end in ordered:
        idle += max(0.0, start - reached)
        reached = max(reached, end)
    return idle / (reached - begin) if reached > begin else 0.0


def busy_spans(llm: Any, work: Callable[[], object], *, is_cuda: bool) -> list[Span]:
    """Return when the device computed while `work` ran; of one clock, in microseconds on a GPU, else in seconds.

    On a CPU, which computes while it is told, what tells the runner a step counts: a double that measures no GPU.
    """
    return _of_kernels(work) if is_cuda else _of_steps(llm, work)


def _of_kernels(work: Callable[[], object]) -> list[Span]:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        work()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    ranges = [each.time_range for each in profile.events() if each.device_type == cuda]
    return [(each.start, each.end) for each in ranges]


def _of_steps(llm: Any, work: Callable[[], object]) -> list[Span]:
    runner, spans = llm.core.executor.runner, []
    dispatch = runner.dispatch

    def timed(frame: Any) -> Any:
        begun = time.perf_counter()
        pending = dispatch(frame)
        spans.append((begun, time.perf_counter()))
        return pending

    runner.dispatch = timed
    try:
        work()
    finally:
        runner.dispatch = dispatch
    return spans


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    setting = Setting(torch.device(arguments.device), arguments.small)
    for row in PARTS[arguments.part](setting):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

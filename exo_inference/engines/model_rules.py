"""Rules between flags and the model, the GPU and their number. Pure; simple numbers in.

Admission and the planner call these with what they know about the model (`ModelFacts`) and the GPU
(`GpuFacts`); what they do not know is None and not judged. Sizes of memory are the planner's.

Least compute capabilities are those of `get_min_capability` in `model_executor/layers/quantization`
of each release. A KV cache in FP8 needs FlashInfer's kernels below Ada, which begin at Ampere
(`v1/attention/backends/flashinfer.py`, 0.28.0), in NVFP4 Blackwell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from exo_inference.engines.flags.argument_vector import Use
from exo_inference.engines.flags.catalogue import flags_of, is_at_least
from exo_inference.engines.flags.problems import ParameterProblem
from exo_inference.engines.flags.reader import Reading
from exo_inference.engines.versions import DEFAULT_VERSION

Capability = tuple[int, int]
"""Compute capability of an NVIDIA GPU: (8, 9) is Ada, (9, 0) Hopper."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known about the model.

    Attributes:
        revision_pinned: its revision is a commit, so that code in it cannot change.
        num_attention_heads, num_key_value_heads, vocab_size, num_layers: of the text model; key
            and value heads are None where each position has one vector for all heads (MLA).
        quantization: method of the checkpoint, as `--quantization` names it.
        draft_vocab_size: of the draft model, where one is used.
    """

    revision_pinned: bool | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    vocab_size: int | None = None
    num_layers: int | None = None
    quantization: str | None = None
    draft_vocab_size: int | None = None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What is known about the GPUs of one replica.

    Attributes:
        name: for messages.
        count: GPUs of one replica.
        capability: compute capability; None for other makers' GPUs.
    """

    name: str
    count: int
    capability: Capability | None = None


LEAST_CAPABILITY: Mapping[str, Mapping[str, Capability]] = {
    "auto_awq": {"0.12.0": (7, 5)},
    "awq": {"0.12.0": (7, 5)},
    "awq_marlin": {"0.12.0": (8, 0), "0.15.1": (7, 5)},
    "bitsandbytes": {"0.12.0": (7, 0)},
    "compressed_tensors": {"0.12.0": (7, 0)},
    "experts_int8": {"0.12.0": (8, 0)},
    "fbgemm_fp8": {"0.12.0": (8, 0)},
    "fp8": {"0.12.0": (8, 0), "0.15.1": (7, 5)},
    "fp_quant": {"0.12.0": (10, 0)},
    "gguf": {"0.12.0": (6, 0)},
    "gptq": {"0.12.0": (6, 0)},
    "gptq_marlin": {"0.12.0": (8, 0), "0.15.1": (7, 5)},
    "gptq_marlin_24": {"0.12.0": (8, 0)},
    "humming": {"0.20.0": (7, 5)},
    "modelopt": {"0.12.0": (8, 9), "0.27.0": (8, 0)},
    "modelopt_fp4": {"0.12.0": (8, 0), "0.15.1": (7, 5)},
    "modelopt_mixed": {"0.17.0": (8, 9), "0.24.0": (7, 5)},
    "modelopt_mxfp8": {"0.15.1": (10, 0), "0.20.0": (8, 0)},
    "moe_wna16": {"0.12.0": (7, 0)},
    "mxfp4": {"0.12.0": (8, 0)},
    "petit_nvfp4": {"0.12.0": (9, 0)},
    "quark": {"0.12.0": (7, 0)},
    "rtn": {"0.12.0": (8, 0)},
    "torchao": {"0.12.0": (7, 5)},
}
"""Oldest GPUs on which a quantization runs at all, natively or by unpacking the weights, and the
release from which that is so. What 0.16.0 changed is taken as of 0.15.1, the release before it."""

_CACHE_CAPABILITY: Mapping[str, Capability] = {"fp8": (8, 0), "nvfp4": (10, 0)}
_BF16: Capability = (8, 0)


def check_model_rules(
    reading: Reading,
    *,
    model: ModelFacts,
    gpu: GpuFacts | None = None,
    given: Mapping[str, int] | None = None,
) -> list[ParameterProblem]:
    """Return what does not go together, in the order of the items.

    Rules about something that no flag names (heads and the deployment's GPU count) are reported at
    index 0 when they follow from the deployment alone.

    Args:
        reading: the user's flags, read by a release of vLLM.
        model: what is known about the model.
        gpu: what is known about the GPUs; None skips the rules about them.
        given: sizes that the platform sets where the flags do not, by the names of flags.
    """
    problems = [*_check_remote_code(reading, model)]
    if gpu is not None:
        problems += _check_sizes(reading, model, gpu, given or {})
        problems += _check_formats(reading, model, gpu)
    return sorted(problems, key=lambda problem: problem.index)


def check_parallelism(
    tensor: int, pipeline: int, data: int, *, model: ModelFacts, gpu_count: int
) -> list[str]:
    """Return what is wrong with a split over GPUs, each with its next step.

    Heads are split evenly; key and value heads are repeated where there are fewer than GPUs. The
    vocabulary is not judged: vLLM pads it.
    """
    problems = []
    used = tensor * pipeline * data
    split = _check_heads(tensor, model, gpu_count)
    if used != gpu_count:
        # A split that the model does not allow either must not be answered with more GPUs.
        what, step = split or ("", f"set gpu-count to {used}, or leave the sizes out")
        problems.append(
            f"tensor ({tensor}) × pipeline ({pipeline}) × data parallelism ({data}) uses {used} "
            f"GPUs, expected the {gpu_count} of the deployment; {what and f'{what}; '}{step}"
        )
    elif split is not None:
        problems.append("; ".join(split))
    layers = model.num_layers
    if layers is not None and pipeline > layers:
        problems.append(
            f"pipeline parallelism of {pipeline} is more than the model's {layers} layers, "
            f"expected at most {layers}; leave it out"
        )
    return problems


def _check_heads(tensor: int, model: ModelFacts, gpu_count: int) -> tuple[str, str] | None:
    """Return why the heads cannot be split, and the next step; None if they can."""
    heads, key_value = model.num_attention_heads, model.num_key_value_heads
    if heads is not None and heads % tensor:
        what = (
            f"tensor parallelism of {tensor} does not divide the model's {heads} attention heads, "
            f"expected one of: {_join(_divisors(heads, 2 * tensor))}"
        )
        return what, _suggest_split(heads, gpu_count)
    if key_value and max(key_value, tensor) % min(key_value, tensor):
        what = (
            f"tensor parallelism of {tensor} does not go with the model's {key_value} key-value "
            f"heads, expected a divisor or a multiple of {key_value}"
        )
        return what, _suggest_split(math.gcd(heads or key_value, key_value), gpu_count)
    return None


def check_quantization(method: str, gpu: GpuFacts, version: str | None = None) -> str | None:
    """Return why a quantization does not run on a GPU, with a next step; None if it does."""
    release = flags_of(version or DEFAULT_VERSION)
    changes = LEAST_CAPABILITY.get(method.replace("-", "_"), {})
    known = [least for since, least in changes.items() if is_at_least(release.listed, since)]
    if gpu.capability is None or not known or gpu.capability >= known[-1]:
        return None
    return (
        f"quantization {method} does not run on {gpu.name} (compute capability "
        f"{_dotted(gpu.capability)}) in {release.named}, expected {_dotted(known[-1])} or later; "
        "use a newer GPU family, or a checkpoint in 16 bits"
    )


def check_kv_cache_dtype(dtype: str, gpu: GpuFacts) -> str | None:
    """Return why a KV cache format does not run on a GPU, with a next step; None if it does."""
    kind = next((kind for kind in _CACHE_CAPABILITY if dtype.startswith(kind)), None)
    if kind is None or gpu.capability is None or gpu.capability >= _CACHE_CAPABILITY[kind]:
        return None
    return (
        f"a KV cache in {dtype} does not run on {gpu.name} (compute capability "
        f"{_dotted(gpu.capability)}), expected {_dotted(_CACHE_CAPABILITY[kind])} or later; "
        "leave --kv-cache-dtype out, or use a newer GPU family"
    )


def check_dtype(dtype: str, gpu: GpuFacts) -> str | None:
    """Return why an activation format does not run on a GPU, with a next step; None if it does."""
    if dtype != "bfloat16" or gpu.capability is None or gpu.capability >= _BF16:
        return None
    return (
        f"bfloat16 does not run on {gpu.name} (compute capability {_dotted(gpu.capability)}), "
        f"expected {_dotted(_BF16)} or later; write --dtype=float16"
    )


def check_draft(model: ModelFacts) -> str | None:
    """Return why a draft model does not go with the model; None if it does, or is not known."""
    target, draft = model.vocab_size, model.draft_vocab_size
    if target is None or draft is None or target == draft:
        return None
    return (
        f"the draft model has a vocabulary of {draft}, expected the model's {target}; use a draft "
        "model of the same family"
    )


def _check_remote_code(reading: Reading, model: ModelFacts) -> Iterator[ParameterProblem]:
    use = reading.find("trust-remote-code")
    if use is not None and not use.negated and model.revision_pinned is False:
        text = (
            f"{use.spelling} runs code that comes with the model, whose revision is not pinned, "
            "expected a commit; create the model with --revision and the commit you have read"
        )
        yield ParameterProblem(use.index, text, use.spelling, "policy")


def _check_sizes(
    reading: Reading, model: ModelFacts, gpu: GpuFacts, given: Mapping[str, int]
) -> Iterator[ParameterProblem]:
    names = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
    sizes = {**given, **reading.values}
    named = [use for use in map(reading.find, names) if use is not None]
    pipeline, data = (sizes.get(name) or 1 for name in names[1:])
    tensor = sizes.get(names[0]) or max(1, gpu.count // (pipeline * data))
    first = min(named, key=lambda use: use.index, default=None)
    for text in check_parallelism(tensor, pipeline, data, model=model, gpu_count=gpu.count):
        yield _of(first, "--tensor-parallel-size", text)
    draft = check_draft(model)
    if draft is not None:
        use = reading.find("speculative-config") or reading.find("spec-model")
        yield _of(use, "--speculative-config", draft)


def _check_formats(
    reading: Reading, model: ModelFacts, gpu: GpuFacts
) -> Iterator[ParameterProblem]:
    version = reading.release.version
    rules: list[tuple[str, str | None, Callable[[str, GpuFacts], str | None]]] = [
        ("quantization", model.quantization, lambda x, g: check_quantization(x, g, version)),
        ("kv-cache-dtype", None, check_kv_cache_dtype),
        ("dtype", None, check_dtype),
    ]
    for name, otherwise, rule in rules:
        use = reading.find(name)
        value = use.values[0].text if use is not None and use.values else otherwise
        if value is not None and (text := rule(value, gpu)) is not None:
            yield _of(use, f"--{name}", text)


def _of(use: Use | None, flag: str, text: str) -> ParameterProblem:
    spelling = use.spelling if use is not None else flag
    return ParameterProblem(
        use.index if use is not None else 0, f"{spelling}: {text}", spelling, "model"
    )


def _divisors(number: int, limit: int) -> list[int]:
    return [n for n in range(1, min(number, limit) + 1) if number % n == 0]


def _suggest_split(heads: int, gpu_count: int) -> str:
    tensor = max(n for n in range(1, gpu_count + 1) if gpu_count % n == 0 and heads % n == 0)
    if tensor == gpu_count:
        return f"write --tensor-parallel-size={tensor}"
    rest = gpu_count // tensor
    return f"write --tensor-parallel-size={tensor} --pipeline-parallel-size={rest}"


def _join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"

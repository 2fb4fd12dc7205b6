"""What PyTorch computes of a deployment on a processor: why no speed is promised, and which flags an engine refuses. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from exo_inference.planner.model.shapes import KvKind
from exo_inference.planner.problem import Problem
from exo_inference.planner.processor.kernels import PLAIN_LOOPS, ProcessorKernels

if TYPE_CHECKING:
    from exo_inference.planner.gpu_catalog import Gpu
    from exo_inference.planner.model.architecture import Architecture
    from exo_inference.planner.parameters import EngineParameters
    from exo_inference.planner.resolved_setting import Setting

_SLOWEST = "tokens come several times slower, most of all with --quantization, and how fast is not estimated"
_SLOWER = "tokens come slower than from the kernels, and how fast is not estimated"

_LEFT_OUT: Mapping[str, tuple[tuple[str, str | bool], ...]] = {
    "batch-invariant": (("batch_invariant", False),),
    "attention-backend": (("attention_backend", "auto"),),
}
"""What says the same as leaving a flag out, by its name."""


@dataclass(frozen=True, slots=True)
class Lack:
    """One reason for which PyTorch computes.

    Attributes:
        part: what it computes: everything, layers, or attention.
        why: the reason.
        step: what to change, where a flag changes it.
        way: the same as the name of a parameter and what it is to be.
        most_times: see `TorchPart`.
    """

    part: Literal["all", "layers", "attention"]
    why: str
    step: str = ""
    way: tuple[str, str | int] | None = None
    most_times: float | None = None


def not_sized(parameters: EngineParameters, gpu: Gpu) -> str | None:
    """Return why an engine is not sized on a processor; None on a GPU, and where its rules there are known."""
    rules = parameters.rules
    if gpu.vendor != "cpu" or rules.cpu_batch is not None:
        return None
    return f"it is not sized for {rules.title} on a CPU, whose memory is shared out by other rules there"


def find_lacks(setting: Setting) -> tuple[Lack, ...]:
    """Return why PyTorch computes, or a part; nothing on a GPU, and where the compiled kernels compute all."""
    kernels, gpu = setting.rules.kernels, setting.gpu
    if kernels is None or gpu.vendor != "cpu" or gpu.refusal:
        return ()
    if not gpu.kernels:
        why = f"{setting.rules.title} is not installed here with compiled kernels, or EXO_ENGINE_CPU_KERNELS switches them off"
        return (
            Lack("all", why, "install it with a C++ compiler, or unset EXO_ENGINE_CPU_KERNELS"),
        )
    return tuple(_find(setting, kernels))


def why_not_estimated(setting: Setting) -> str:
    """Return why the speed is not that of kernels with vectors; empty where it is, or near."""
    for lack in find_lacks(setting):
        if lack.most_times is None:
            return f"{lack.why}: {_SLOWEST if lack.part == 'all' else _SLOWER}"
    gpu, rules = setting.gpu, setting.rules
    is_ours = rules.kernels is not None and gpu.vendor == "cpu" and not gpu.refusal
    if is_ours and gpu.kernels == PLAIN_LOOPS and not gpu.is_measured:
        return f"{rules.title}'s compiled kernels have no vectors here: {_SLOWEST}"
    return ""


def processor_notes(setting: Setting) -> tuple[str, ...]:
    """Return what is to be known of the speed on a processor."""
    if slow := why_not_estimated(setting):
        return (slow,)
    notes = [
        f"{lack.why}: a step takes up to {lack.most_times:g} times as long as estimated"
        for lack in find_lacks(setting)
    ]
    threads = setting.parameters.cpu_threads
    if threads is not None and setting.gpu.vendor == "cpu" and setting.rules.kernels is not None:
        notes.append(
            f"the speed is that of a thread on each core; with --cpu-threads={threads} on more cores a prompt takes longer "
            "by as many times as there are fewer threads, and each token of an answer by up to as many"
        )
    return tuple(notes)


def kernel_problems(setting: Setting) -> list[Problem]:
    """Return what the engine refuses at its start, as its kernels do not compute what a flag asks of them."""
    kernels, parameters = setting.rules.kernels, setting.parameters
    if kernels is None:
        return []
    backend = parameters.attention_backend or "auto"
    if setting.model.is_embedding or parameters.runner == "pooling":
        asked = {
            "batch-invariant": parameters.batch_invariant,
            "attention-backend": backend != "auto",
        }
        why = "is for models that generate, and this one embeds or scores; leave"
        return [
            Problem(name, f"--{name} {why} --{name} out", says_step=True, ways=_LEFT_OUT[name])
            for name, is_asked in asked.items()
            if is_asked
        ]
    lacks, problems = find_lacks(setting), []
    if parameters.batch_invariant:
        told = "--batch-invariant cannot be kept on a CPU"
        problems += [_refusal("batch-invariant", told, lack) for lack in lacks]
    told = f"--attention-backend={backend} is not there"
    if backend == kernels.backend:
        in_question = [lack for lack in lacks if lack.part != "layers"]
        if setting.gpu.vendor != "cpu":
            in_question = [Lack("attention", "it computes on a CPU alone")]
        problems += [_refusal("attention-backend", told, lack) for lack in in_question]
    elif setting.gpu.vendor == "cpu" and backend not in kernels.other_backends:
        problems.append(_refusal("attention-backend", told, Lack("attention", "it needs a GPU")))
    return problems


def _refusal(name: str, told: str, lack: Lack) -> Problem:
    ways = " or ".join(filter(None, (lack.step and f"{lack.step},", f"leave --{name} out")))
    settings = (*filter(None, [lack.way]), *_LEFT_OUT[name])
    return Problem(name, f"{told}: {lack.why}; {ways}", says_step=True, ways=settings)


def _find(setting: Setting, kernels: ProcessorKernels) -> Iterator[Lack]:
    parameters, own = setting.parameters, f"{setting.rules.title}'s compiled kernels"
    if setting.dtype != kernels.dtype:
        why = f"{own} compute in {kernels.dtype} alone, not in {setting.dtype}"
        yield Lack("all", why, f"set --dtype={kernels.dtype}", ("dtype", kernels.dtype))
    asked = (parameters.quantization or "").lower()
    if asked and asked not in kernels.quantizations:
        why = f"{own} multiply no weights of --quantization={asked}"
        step = "set --quantization=int8 or int4, or leave --quantization out"
        yield Lack("layers", why, step, ("quantization", "int8"))
    else:
        lacks = (
            _lack_of_size(setting.model, kernels, own, is_plain=not asked),
            _lack_of_int8(setting.model, kernels, own, asked),
        )
        yield from filter(None, lacks)
    if (part := kernels.by_torch.get(setting.model.model_type)) is not None:
        why = f"PyTorch computes {part.what} of {setting.model.model_type} models on a CPU"
        yield Lack("layers", why, most_times=part.most_times)
    if any(layer.kv is not None for layer, _ in setting.model.layer_counts):
        yield from _find_of_attention(setting, kernels, own)


def _lack_of_size(
    model: Architecture, kernels: ProcessorKernels, own: str, *, is_plain: bool
) -> Lack | None:
    """Return what is lacking for the number of inputs of plain weights, as those of routers always are."""
    weights = [each for layer, _ in model.layer_counts for each in layer.weights]
    routers = {each.in_features for each in weights if each.part == "router"} - {1}
    sizes = {"routers of experts": routers}
    if is_plain:
        inner = {each.in_features for each in weights} - {1, model.hidden_size}
        sizes = {"embedding and head": {model.hidden_size}, "matrices": inner, **sizes}
    multiple = kernels.input_multiple
    odd = {name: sorted(size for size in found if size % multiple) for name, found in sizes.items()}
    names = [f"{name} of {' and '.join(map(str, found))}" for name, found in odd.items() if found]
    if not names:
        return None
    which = f"a multiple of {multiple} inputs, this model has {', '.join(names)}"
    why = f"{own} multiply plain weights of {which}"
    if odd["routers of experts"]:  # plain in any format
        return Lack("layers", why)
    return Lack("layers", why, "set --quantization=int8", ("quantization", "int8"))


def _lack_of_int8(
    model: Architecture, kernels: ProcessorKernels, own: str, asked: str
) -> Lack | None:
    """Return what is lacking for the number of inputs of weights in INT8."""
    sizes = {each.in_features for layer, _ in model.layer_counts for each in layer.weights}
    largest = max(sizes, default=0)
    if asked != "int8" or largest <= kernels.most_int8_inputs:
        return None
    why = f"{own} multiply INT8 weights of {kernels.most_int8_inputs} inputs at most, this model has {largest}"
    return Lack("layers", why, "leave --quantization out")


def _find_of_attention(setting: Setting, kernels: ProcessorKernels, own: str) -> Iterator[Lack]:
    parameters = setting.parameters
    backend = parameters.attention_backend or "auto"
    if backend not in ("auto", kernels.backend):
        why = f"--attention-backend={backend} does not attend by the compiled kernels"
        yield Lack("attention", why, "leave --attention-backend out", ("attention_backend", "auto"))
    cache = (parameters.kv_cache_dtype or "auto").lower()
    if cache not in kernels.cache_types:
        why = f"{own} read no KV cache of --kv-cache-dtype={cache}"
        step = "set --kv-cache-dtype=int8, or leave --kv-cache-dtype out"
        yield Lack("attention", why, step, ("kv_cache_dtype", "int8"))
    if setting.kv.block_size % kernels.block_multiple:
        why = f"{own} read blocks of a multiple of {kernels.block_multiple} tokens, --block-size is {setting.kv.block_size}"
        multiple = kernels.block_multiple
        yield Lack("attention", why, f"set --block-size={multiple}", ("block_size", multiple))
    specs = [layer.kv for layer, _ in setting.model.layer_counts if layer.kv is not None]
    if any(spec.kind is KvKind.LATENT for spec in specs):
        yield Lack("attention", f"{own} do not attend to latents")
    heads = {spec.key_dim for spec in specs if spec.kind not in (KvKind.LATENT, KvKind.STATE)}
    for dim in sorted(heads):
        if dim % kernels.head_multiple or dim > kernels.longest_head:
            most = f"a multiple of {kernels.head_multiple} numbers and of {kernels.longest_head} at most"
            yield Lack(
                "attention", f"{own} attend in heads of {most}, this model has heads of {dim}"
            )

"""`plan_llama_cpp()`: does this model fit on these GPUs as llama-server would start it? Pure.

`preflight/gguf_engine.py` calls it with flags that were read. Which families llama.cpp computes as modelled here
stands in their rows: of another one nothing is told, rather than a figure that may be wrong. Speed is not estimated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from exo_inference.planner.gpu_catalog import GIB, MIB, Gpu
from exo_inference.planner.llama_cpp.basis import LlamaBasis
from exo_inference.planner.llama_cpp.cache import element_bytes, growth_per_token
from exo_inference.planner.llama_cpp.room import (
    Asked,
    components,
    fits,
    fitted_context,
    has_room,
    layer_counts,
    longest,
    need,
    spilled,
    tightest,
)
from exo_inference.planner.llama_cpp.setting import Context, LlamaSetting, resolve
from exo_inference.planner.llama_cpp.sizes import Sizes
from exo_inference.planner.llama_cpp.weights import mix_of
from exo_inference.planner.memory import Ranks
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.checkpoint import is_gguf
from exo_inference.planner.model.families import llama_cpp_of
from exo_inference.planner.model.name_words import strip_quantization
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.problem import Problem
from exo_inference.planner.verdict import Plan, StagePlan, Verdict

SPILL = "gpu-layers"
"""The code of a start with layers in main memory."""


def find_lack(model: Architecture, gpu: Gpu) -> str | None:
    """Return why nothing can be told of a start; None where something can."""
    if model.cannot_size is not None:
        return f"cannot size {model.name}, because {model.cannot_size}"
    if gpu.vendor != "nvidia":
        return "what it needs is known of NVIDIA's GPUs alone"
    if model.is_embedding:
        return f"what it needs for {model.name}, which embeds or scores texts, is not known"
    if llama_cpp_of(model.model_type) is None:
        return f"how it computes models of the type {model.model_type} is not known"
    if mix_of(model) is None:
        quantization = model.quantization
        form = quantization.default.name if quantization is not None else model.dtype
        return f"{model.name} is stored as {form}, of which it loads no file; name a model in GGUF, such as one in Q4_K_M"
    return None


def plan_llama_cpp(asked: Asked, written: EngineParameters) -> Plan:
    """Return the plan of a start of which `find_lack` finds nothing.

    Args:
        asked: the start.
        written: the flags as the user wrote them.
    """
    context = fitted_context(asked)
    started, problems = _with_layers_moved(asked, context)
    sizes = started.sizes(context)
    gpu = tightest(started, sizes)
    if not problems:
        problems = _memory_problems(started, context, sizes)
    verdict = _verdict(problems)
    shared = sizes.host.total if asked.gpu.is_unified else 0
    parts = components(sizes.gpus[gpu], shared)
    length = min(context.per_sequence, asked.trained) if context.per_sequence else 0
    cache = sizes.gpus[gpu].cache
    stages = tuple(
        StagePlan(sizes.placement.layers.count(index), each.weights, each.cache, context.total)
        for index, each in enumerate(sizes.gpus)
    )
    empty = Plan(asked.model.name, asked.gpu.name, asked.gpus, written, verdict)
    return replace(
        empty,
        problems=tuple(problems),
        ranks=Ranks(pipeline=asked.gpus),
        components=parts,
        total_bytes_per_gpu=asked.gpu.reported_bytes,
        budget_bytes_per_gpu=asked.room,
        weights_bytes_per_gpu=sizes.gpus[gpu].weights,
        available_kv_bytes_per_gpu=cache,
        available_kv_bytes_low=cache,
        available_kv_bytes_high=cache,
        needed_kv_bytes_per_gpu=cache,
        kv_bytes_per_token=_growth(started, sizes, gpu),
        kv_block_size=1,
        num_kv_blocks=context.total,
        kv_capacity_tokens=context.total,
        max_concurrency=min(float(context.sequences), context.total / max(1, length)),
        max_model_len=length,
        largest_max_model_len=longest(started, surely=False),
        safe_max_model_len=longest(asked, surely=True),
        max_num_seqs=context.sequences,
        max_num_batched_tokens=context.batch,
        fits_nominally=fits(started, sizes, surely=False),
        stages=stages,
        usd_per_hour=asked.gpu.price(asked.gpus),
        notes=tuple(_notes(started, context, sizes, gpu)),
        fixed_basis=LlamaBasis(started, context, sizes, gpu),
    )


def _with_layers_moved(asked: Asked, context: Context) -> tuple[Asked, list[Problem]]:
    """Return the start as `--fit` makes it where it may move layers, and what is wrong with it."""
    sizes = asked.sizes(context)
    if not asked.setting.moves_layers or fits(asked, sizes, surely=False):
        return asked, []
    found = spilled(asked, context)
    if found is None:
        return asked, []
    layers, units = len(asked.model.layers), asked.units
    moved = [f"the experts of about {found.cpu_moe} of {layers} layers"] if found.cpu_moe else []
    if off := units - (found.gpu_layers or 0):
        moved.append(f"about {off} of {units} layers, the output being one,")
    detail = (
        f"{_gib(need(asked, sizes, tightest(asked, sizes)))} are needed of each GPU and {asked.margin // MIB:,} MiB are to stay free of "
        f"{_gib(asked.room)}: --fit keeps {' and '.join(moved)} in main memory, and the CPU computes them, many times slower"
    )
    return replace(asked, setting=found), [Problem(SPILL, detail, refuses=False)]


def _memory_problems(asked: Asked, context: Context, sizes: Sizes) -> list[Problem]:
    """Say where a start has no room, or may have none."""
    if has_room(asked, context):
        return []
    gpu = tightest(asked, sizes)
    device, wanted = sizes.gpus[gpu], need(asked, sizes, gpu)
    detail = (
        f"weights of {_gib(device.weights)}, the cache of {context.total:,} tokens of {_gib(device.cache)}, compute buffers of "
        f"{_gib(device.compute)} and CUDA's context make {_gib(wanted)}, found {_gib(asked.room)} on "
        f"{'the GPU' if asked.gpus == 1 else 'each GPU'}"
    )
    if need(asked, sizes, gpu, "low") > asked.most_room:
        return [Problem("memory", f'{detail}: llama-server ends with CUDA\'s "out of memory"')]
    return [Problem("memory", f"{detail}, within the error of the estimate", refuses=False)]


def _verdict(problems: list[Problem]) -> Verdict:
    if any(each.refuses for each in problems):
        return Verdict.REFUSED
    return Verdict.TIGHT if problems else Verdict.FITS


def _growth(asked: Asked, sizes: Sizes, gpu: int) -> float:
    """Return what a token adds to the cache on a GPU."""
    if not asked.setting.offloads_cache:
        return 0.0
    placed = zip(asked.model.layers, sizes.placement.layers, strict=True)
    layers = [layer for layer, device in placed if device == gpu]
    known, counts = {id(layer): layer for layer in layers}, Counter(map(id, layers))
    kind, setting = asked.model.model_type, asked.setting
    return sum(
        counts[key] * growth_per_token(each.kv, kind, setting) for key, each in known.items()
    )


def _notes(asked: Asked, context: Context, sizes: Sizes, gpu: int) -> Iterator[str]:
    model, setting = asked.model, asked.setting
    yield from model.notes
    whole = resolve(setting, asked.trained)
    if context.total < whole.total:
        free = ", ".join(dict.fromkeys(f"{each // MIB:,}" for each in setting.fit_targets))
        missed = "" if _leaves_free(asked, sizes) else ", of which it falls short"
        yield f"--fit shortens the context from {whole.per_sequence:,} to {context.per_sequence:,} tokens, to leave {free} MiB of each GPU free{missed}; --ctx-size sets it"
    if setting.fits and setting.gpu_layers is None and not setting.moves_layers:
        yield "--fit moves no layers to main memory where --cpu-moe, --n-cpu-moe or --tensor-split says where some are"
    if context.sequences > 1 and context.streams == 1:
        yield f"{context.sequences} requests share the cache of {context.total:,} tokens; one alone may take all of it"
    if context.per_sequence > asked.trained:
        yield f"the model was trained with {asked.trained:,} tokens, which is how long a request may be"
    maybe = sum(each.maybe for each in sizes.gpus)
    if maybe:
        yield f"a file that has the model's prediction layers takes up to {_gib(maybe)} more, which the band holds"
    if model.vision is not None:
        yield "an image encoder is a file of its own, which --mmproj loads; it is not counted"
    if asked.gpus > 1:
        counts = ", ".join(str(each) for each in layer_counts(sizes))
        yield f"whole layers are split over the GPUs, {counts} of them, the output being one; GPU {gpu} has the least room, and the figures are its"
    yield _host_note(asked, sizes)
    yield "llama.cpp's speed is not estimated"


def _leaves_free(asked: Asked, sizes: Sizes) -> bool:
    """Whether about as much of each GPU stays free as `--fit` is to leave: it interpolates, and may be off by some of it."""
    return all(
        asked.room - need(asked, sizes, gpu) >= 0.75 * target for gpu, target in asked.spared
    )


def _host_note(asked: Asked, sizes: Sizes) -> str:
    placement, kept = sizes.placement, ["the token embedding"]
    layers = placement.layers.count(None)
    if layers:
        kept.append(f"{layers} layers")
    if placement.experts_off:
        kept.append(f"the experts of {placement.experts_off} layers")
    if sizes.host.cells:
        kept.append("their cache" if layers and asked.setting.offloads_cache else "the cache")
    kept.append("buffers")
    listed = f"{', '.join(kept[:-1])} and {kept[-1]}"
    return f"{_gib(sizes.host.total)} of main memory are needed for {listed}; whether so much is free is not judged"


def check_files(model: Architecture) -> Problem | None:
    """Return why llama.cpp does not start with a model of other files than GGUF."""
    if is_gguf(model):
        return None
    short = model.name.rpartition("/")[2]
    bare = strip_quantization(short.lower())
    named = model.name if bare == short.lower() else model.name.removesuffix(short) + bare
    detail = (
        f"llama.cpp loads *.gguf files alone, and by its name {model.name} has none: "
        f"name a repository of GGUF files and the type, such as {named}-GGUF:Q4_K_M"
    )
    return Problem("engine", detail, says_step=True)


def check_cache_types(setting: LlamaSetting) -> Problem | None:
    """Return llama.cpp's refusal of values in blocks without flash attention."""
    if setting.flash_attention or element_bytes(setting.value_type) >= 2:
        return None
    detail = f"--cache-type-v {setting.value_type} needs flash attention, and --flash-attn is off; leave one of them out"
    return Problem("kv-cache-dtype", detail, says_step=True)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.2f} GiB"

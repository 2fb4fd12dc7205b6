"""The tensors of a GGUF file, layer by layer, and on which device each of them is. Pure.

Source: `llama_model_base::load_tensors` (src/llama-model.cpp, 0c1e5709): of n layers and the output, the last
`--gpu-layers` are on GPUs, shared out by `--tensor-split`; the token embedding stays in main memory, and where it is
the output too, the GPU has a second one. Types are those of `tensor_types.py`; where the size of the file is
known, they are scaled to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from exo_inference.planner.llama_cpp.setting import LlamaSetting
from exo_inference.planner.llama_cpp.tensor_types import BITS, KNOWN, Mix
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.families import LlamaCpp, llama_cpp_of
from exo_inference.planner.model.shapes import Layer, Weight

_VECTORS = frozenset({"norm", "expert_bias"})
_OF_EXPERTS = frozenset({"routed_experts", "expert_bias"})
_ELSEWHERE = frozenset({"vision", "projector"})
_ROLES = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "in_proj_qkv": "v", "kv_b_proj": "other",
    "down_proj": "down",
}  # fmt: skip
_GGUF, _NAME = "gguf", "gguf-"
_MXFP4 = "mxfp4"


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """The tensors of a layer: routed experts apart, and what a GPU fetches to compute prompts of it elsewhere."""

    rest: int
    experts: int
    fetched: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.rest + self.experts


@dataclass(frozen=True, slots=True)
class FileBytes:
    """The tensors of a file.

    Attributes:
        layers: in order.
        embedding: what stays in main memory.
        output: the last unit, which is computed with.
        is_tied: output and embedding are one tensor of the file.
        drafting: layers for prediction, which some files have and others have not; 0 where the file's size is known.
        scale: by which all of it is larger than its types make it, where the file's size is known.
    """

    layers: tuple[LayerBytes, ...]
    embedding: int
    output: int
    is_tied: bool
    drafting: int = 0
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file.

    Attributes:
        role: as `Mix.kind` takes it.
        kind: its type.
    """

    weight: Weight
    role: str
    kind: str

    @property
    def num_bytes(self) -> float:
        """Its size."""
        return self.weight.num_elements * BITS[self.kind] / 8

    @property
    def is_of_experts(self) -> bool:
        """Whether `--cpu-moe` moves it."""
        return self.weight.part in _OF_EXPERTS


def mix_of(model: Architecture) -> Mix | None:
    """Return how the model's file is quantized; None for a form that llama.cpp does not load."""
    name = _quantization(model)
    if name not in KNOWN:
        return None
    specs = [layer.kv for layer, _ in model.layer_counts if layer.kv is not None]
    heads = [spec.num_heads for spec in specs if spec.num_heads]
    experts = model.moe.num_experts if model.moe is not None else 0
    family = llama_cpp_of(model.model_type) or LlamaCpp()
    is_70b = family.widens_70b and len(model.layers) == 80
    return Mix(
        name, len(model.layers), model.num_heads // max(1, min(heads, default=1)), experts,
        is_tied=_is_tied(model), is_70b=is_70b, experts=family.experts,
    )  # fmt: skip


def _quantization(model: Architecture) -> str:
    quantization = model.quantization
    if quantization is None:
        return {"float32": "F32", "float": "F32", "float16": "F16", "half": "F16"}.get(
            model.dtype, "BF16"
        )
    if quantization.method == _GGUF:
        return quantization.default.name.removeprefix(_NAME)
    return "MXFP4_MOE" if quantization.method == _MXFP4 else ""


def _is_tied(model: Architecture) -> bool:
    return not any(weight.part == "lm_head" for weight in model.outer_weights)


@lru_cache(maxsize=64)
def file_bytes(model: Architecture) -> FileBytes:
    """Return the tensors of the model's file; the model's quantization is one that `mix_of` knows."""
    mix = mix_of(model)
    assert mix is not None, "callers ask mix_of first"
    groups: dict[tuple[object, ...], tuple[float, float, float]] = {}  # models may have thousands
    for index, layer in enumerate(model.layers):
        key = (id(layer), *mix.group(index))
        if key not in groups:
            groups[key] = _layer_bytes(layer, mix, index)
    sizes = tuple(groups[id(each), *mix.group(index)] for index, each in enumerate(model.layers))
    embedding = sum(each.num_bytes for each in embedding_tensors(model, mix))
    output = sum(each.num_bytes for each in output_tensors(model, mix))
    scale, known, is_tied = 1.0, model.checkpoint_bytes, _is_tied(model)
    quantization = model.quantization
    if known is not None and quantization is not None and quantization.method == _GGUF:
        all_bytes = sum(rest + experts for rest, experts, _ in sizes) + embedding
        all_bytes += 0.0 if is_tied else output
        scale = known / max(1.0, all_bytes)
    layers = tuple(LayerBytes(*(int(part * scale) for part in each)) for each in sizes)
    drafting = 0.0 if scale != 1.0 else _drafting_bytes(model, mix)
    return FileBytes(
        layers, int(embedding * scale), int(output * scale), is_tied=is_tied, drafting=int(drafting), scale=scale
    )  # fmt: skip


_SHARED = frozenset({"embedding", "lm_head"})
"""What prediction layers have of the model itself."""


def _drafting_bytes(model: Architecture, mix: Mix) -> float:
    family = llama_cpp_of(model.model_type) or LlamaCpp()
    if not family.loads_drafting:
        return 0.0
    weights = (weight for weight in model.mtp_weights if weight.part not in _SHARED)
    return sum(_tensor(weight, "other", mix, 0).num_bytes for weight in weights)


_TABLES = frozenset({"embedding", "lm_head", "per_layer_embedding", "vision", "projector"})
_LOOKED_UP = frozenset({"embedding", "per_layer_embedding"})


def embedding_tensors(model: Architecture, mix: Mix) -> Iterator[Tensor]:
    """Yield what rows are looked up in, which stays in main memory."""
    for weight in model.outer_weights:
        if weight.part in _LOOKED_UP:
            yield _tensor(weight, "embedding", mix, 0)


def output_tensors(model: Architecture, mix: Mix) -> Iterator[Tensor]:
    """Yield what logits are computed with: the head or a second embedding, its norm, and a projection of Gemma's in 16 bit."""
    part, role = ("embedding", "embedding") if _is_tied(model) else ("lm_head", "output")
    for weight in model.outer_weights:
        if weight.part == part:
            yield _tensor(weight, role, mix, 0)
        elif weight.part not in _TABLES:
            yield Tensor(weight, "other", "F32" if weight.in_features == 1 else "F16")


def _layer_bytes(layer: Layer, mix: Mix, index: int) -> tuple[float, float, float]:
    rest = experts = fetched = 0.0
    for each in layer_tensors(layer, mix, index):
        size = each.num_bytes
        if each.is_of_experts:
            experts += size
            continue
        rest += size
        fetched += size if each.role != "o" and each.weight.in_features > 1 else 0.0
    return rest, experts, max(fetched, experts * 2 / 3)


def layer_tensors(layer: Layer, mix: Mix, index: int) -> Iterator[Tensor]:
    """Yield the tensors of a layer, of all but an image encoder."""
    for weight in layer.weights:
        if weight.part in _ELSEWHERE:
            continue
        role = _ROLES.get(weight.path.rpartition(".")[2], "other")
        if weight.part in _OF_EXPERTS:
            role = "expert-down" if role == "down" else "expert"
        yield _tensor(weight, role, mix, index)


def _tensor(weight: Weight, role: str, mix: Mix, layer: int) -> Tensor:
    is_exact = weight.part in _VECTORS or weight.in_features == 1
    is_router = weight.part == "router" and not weight.path.endswith("in_proj_ba")
    kind = "F32" if is_exact or is_router else mix.kind(role, layer, weight.in_features)
    return Tensor(weight, role, kind)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each unit is: the index of a GPU, or None for main memory; the last unit is the output."""

    units: tuple[int | None, ...]
    experts_off: int = 0
    """The experts of so many layers are in main memory."""

    @property
    def layers(self) -> tuple[int | None, ...]:
        """The layers alone."""
        return self.units[:-1]

    @property
    def output(self) -> int | None:
        """Where logits are computed."""
        return self.units[-1]

    @property
    def is_whole(self) -> bool:
        """Whether nothing but the embedding is in main memory."""
        return None not in self.units and not self.experts_off


def place(model: Architecture, setting: LlamaSetting, gpus: int, gpu_layers: int) -> Placement:
    """Return where each layer and the output is."""
    units = len(model.layers) + 1
    active = min(units, max(0, gpu_layers))
    start = units - active
    shares = setting.splits or (1.0,) * gpus
    ends = [each / sum(shares) for each in accumulate(shares)]

    def device(unit: int) -> int | None:
        if unit < start:
            return None
        if setting.only_gpu is not None:
            return setting.only_gpu
        return min(gpus - 1, bisect_right(ends, (unit - start) / active))

    off = min(setting.cpu_moe, len(model.layers)) if model.moe is not None else 0
    return Placement(tuple(device(unit) for unit in range(units)), off)


def device_weights(tensors: FileBytes, placement: Placement, gpus: int) -> tuple[list[int], int]:
    """Return the bytes of each GPU, and those of main memory."""
    sizes, host = [0] * gpus, tensors.embedding
    for index, (layer, device) in enumerate(zip(tensors.layers, placement.layers, strict=True)):
        off = index < placement.experts_off
        if device is None:
            host += layer.total
        else:
            sizes[device] += layer.rest if off else layer.total
            host += layer.experts if off else 0
    if placement.output is not None:
        sizes[placement.output] += tensors.output
    elif not tensors.is_tied:
        host += tensors.output
    return sizes, host


def fetched_bytes(tensors: FileBytes, placement: Placement) -> int:
    """Return the most that a GPU fetches at once of what is in main memory, to compute prompts with."""
    return max(_fetched(tensors.layers, placement), default=0)


def _fetched(layers: Sequence[LayerBytes], placement: Placement) -> Iterator[int]:
    for index, (layer, device) in enumerate(zip(layers, placement.layers, strict=True)):
        if device is None:
            yield layer.fetched
        elif index < placement.experts_off:
            yield int(layer.experts * 2 / 3)

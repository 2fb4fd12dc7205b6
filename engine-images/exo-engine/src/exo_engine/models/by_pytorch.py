"""What of a model's layers the CPU kernels leave to PyTorch, by its description alone, before weights are read."""

from __future__ import annotations

import torch

from exo_engine.kernels.library import kernels_for
from exo_engine.kernels.quantized import MAX_GROUP
from exo_engine.layers import Context, make_head
from exo_engine.models.spec import DecoderSpec
from exo_engine.weight_formats import PLAIN, load_format


def parts_by_pytorch(spec: DecoderSpec, dtype: torch.dtype, weight_format: str) -> str:
    """Name what of a model's layers the CPU kernels leave to PyTorch; empty: nothing, or there are no kernels at all."""
    device = torch.device("cpu")
    if kernels_for(dtype, device) is None:
        return ""
    form, mixture, hidden = load_format(weight_format), spec.mixture, spec.hidden_size
    head = make_head(Context(form, dtype, device), "head", 2, _probed(hidden))
    router = load_format(PLAIN)(2, _probed(hidden), dtype=dtype, device=device)
    inputs = {size // spec.num_ranks: name for name, size in spec.shared_inputs.items() if size}
    inputs[hidden] = "hidden numbers"
    made = {size: form(128, _probed(size), dtype=dtype, device=device) for size in (128, *inputs)}
    lacks = {size: matrix.kernel_call() is None for size, matrix in made.items()}
    kinds = {
        f"embedding and head of a hidden size of {hidden}": not head.is_computed_by_kernels,
        f"products of --quantization {weight_format}": lacks[128],
        **{
            f"products with {size} {name}": lacks[size] > lacks[128]
            for size, name in inputs.items()
        },
        "routers of experts": mixture is not None and router.kernel_call() is None,
        "latent attention": spec.latent is not None,
        "linear attention": spec.delta is not None,
        "gates of attention": spec.has_output_gate,
        "norms behind attention and MLP": spec.has_post_norms,
        "gates with GELU": spec.activation != "silu",
        "embeddings of layers": spec.layer_inputs is not None,
        "shared experts": mixture is not None and mixture.shared_size > 0,
        "clamped gates and biases of experts": mixture is not None and mixture.clamp is not None,
    }
    return ", ".join(name for name, is_there in kinds.items() if is_there)


def _probed(size: int) -> int:
    """Return a size that kernels treat alike: config.json's may be of any size, and the weights have not been looked at.

    What they multiply hangs on remainders of sizes, and on whether a size is above INT8's `MAX_GROUP`.
    """
    return size if size <= 2 * MAX_GROUP else 2 * MAX_GROUP + size % 128

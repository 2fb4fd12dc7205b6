"""Names of a checkpoint's modules, which differ between files of one architecture."""

from __future__ import annotations

import re

_PREFIXES = ("model.", "language_model.", "backbone.", "transformer.", "text_model.")
_SAME_NAMES = (
    (r"block_sparse_moe", "mlp"),
    (r"shared_expert(?![s_])", "shared_experts"),
    (r"\bmixer\.(?=(shared_)?experts|fc[12]_latent|gate\b)", "mlp."),  # Nemotron-H: one name for
    (r"\bmixer\.(?=[qkvo]_proj)", "self_attn."),  # whatever a layer has
    (r"(?<!shared_)experts\.\d+(?=\.|$)", "experts"),  # one by one
)


def normalise_path(path: str) -> str:
    """Return a module's path without the wrapper names that differ between checkpoints."""
    stripped = True
    while stripped:
        stripped = False
        for prefix in _PREFIXES:
            if path.startswith(prefix):
                path, stripped = path[len(prefix) :], True
    for theirs, ours in _SAME_NAMES:
        path = re.sub(theirs, ours, path)
    return path.removesuffix(".weight")

"""Where models come from. `base.py` is the seam; the factory picks a source by the form of a name.

======================  ===================================================
`org/name`              the Hugging Face Hub, or what `HF_ENDPOINT` names;
                        with simulated GPUs the planner's catalogue
`org/name:TYPE`         one GGUF file of such a repository
`file:///abs/path`      a directory of this machine, served in place
`exo/tiny-chat`         built in, comes with this package
======================  ===================================================
"""

from __future__ import annotations

import re

from exo_inference.hub.base import BUILTIN_PREFIX, FILE_PREFIX, InvalidModelName, ModelSource

__all__ = ["BUILTIN_PREFIX", "FILE_PREFIX", "is_in_place", "source_for"]

_HUB_NAME = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?/[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
    r"(?::[A-Za-z0-9][A-Za-z0-9._-]{0,127})?"
)


def is_in_place(name: str) -> bool:
    """Whether the files of a model of this name are used where they are, and not downloaded."""
    return name.startswith((BUILTIN_PREFIX, FILE_PREFIX))


def source_for(name: str, *, endpoint: str | None = None, simulated: bool = False) -> ModelSource:
    """Return the source that a model's name belongs to; nothing is looked up yet.

    Args:
        name: as users write it.
        endpoint: of the Hub; None is what `HF_ENDPOINT` says, else huggingface.co.
        simulated: models of the Hub are not downloaded, because the GPUs are simulated.

    Raises:
        InvalidModelName: the name has no form that any source knows.
    """
    if name.startswith(FILE_PREFIX):
        from exo_inference.hub.file import FileSource

        return FileSource()
    if name.startswith(BUILTIN_PREFIX):
        from exo_inference.hub.builtin import BuiltinSource

        return BuiltinSource()
    if not _HUB_NAME.fullmatch(name) or ".." in name or "--" in name:
        raise InvalidModelName(
            f"{name[:256]!r} is not the name of a model: expected ORG/NAME of the Hugging Face Hub, "
            f"ORG/NAME:TYPE for one of its GGUF files, file:///ABSOLUTE/PATH, or a built-in model such as exo/tiny-chat",
            hint="Copy the name from the model's page on the Hub, for example Qwen/Qwen3-0.6B.",
        )
    if simulated:
        from exo_inference.hub.simulated import SimulatedSource  # loads the planner's catalogue

        return SimulatedSource()
    from exo_inference.hub.huggingface import HuggingFaceSource  # brings huggingface_hub

    return HuggingFaceSource(endpoint=endpoint)

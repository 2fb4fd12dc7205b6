"""Search the parameters of an engine by a word. Pure; for the parameter help of any engine."""

from __future__ import annotations

from collections.abc import Sequence

from exo_inference.engines.flags.suggestions import MEANINGS
from exo_inference.wire import EngineParameter


def search_parameters(
    parameters: Sequence[EngineParameter], text: str
) -> tuple[EngineParameter, ...]:
    """Return the parameters that a text is about, the likeliest first.

    Found are, in this order: flags whose name holds the text, flags that are meant by it (`context`
    finds --max-model-len), and flags with all its words in their description, values or section.
    """
    wanted = text.strip().lstrip("-").replace("_", "-").lower()
    if not wanted:
        return tuple(parameters)
    ranked = [(_rank(parameter, wanted), parameter) for parameter in parameters]
    found = [(rank, parameter) for rank, parameter in ranked if rank is not None]
    return tuple(parameter for _, parameter in sorted(found, key=lambda pair: pair[0]))


def _rank(parameter: EngineParameter, wanted: str) -> int | None:
    names = [flag.lstrip("-").lower() for flag in parameter.flags]
    dashed = wanted.replace(" ", "-")
    if dashed in names or dashed == parameter.name:
        return 0
    if any(dashed in name for name in names):
        return 1
    if MEANINGS.get(dashed) in parameter.flags:
        return 2
    text = " ".join(
        [parameter.name, parameter.section, parameter.description, *parameter.allowed_values]
    )
    text = text.lower().replace("_", "-")
    return 3 if all(word in text for word in wanted.split()) else None

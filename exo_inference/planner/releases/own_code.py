"""Which models bring code of their own, and the flags with which vLLM runs it.

`engine_rules.py` puts the table into the engine's row; `planning.py` calls `check_own_code`, `changes.py` `own_code_values`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from exo_inference.planner.problem import Problem
from exo_inference.planner.written_flags import write_flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exo_inference.planner.model.architecture import Architecture
    from exo_inference.planner.parameters import EngineParameters


class OwnCode(NamedTuple):
    """What vLLM is told of a type whose code comes with the model: its class for one that embeds, and for one that ranks.

    An empty name: the class that config.json names is the right one.
    """

    embeds: str = ""
    ranks: str = ""


OWN_CODE: Mapping[str, OwnCode] = {
    "new": OwnCode("GteNewModel", "GteNewForSequenceClassification"), "xlm-roberta-flash": OwnCode(),
}  # fmt: skip
"""vLLM 0.32.0: models/registry.py has no NewModel, which docs/models/supported_models.md tells to override, and
models/config.py wants the classes of config that come with both."""


def check_own_code(model: Architecture, parameters: EngineParameters) -> list[Problem]:
    """Return that the code of a model that brings its own is not run, where no flag says so."""
    missing = own_code_values(model, parameters)
    if not missing:
        return []
    flags = [item for name, value in missing.items() for item in write_flag(name, value).items]
    what = f"models of the type {model.model_type} bring code of their own, which {parameters.rules.title}"
    step = "add both" if len(flags) > 1 else "add it"
    return [Problem("engine", f"{what} runs only with {' and '.join(flags)}: {step}")]


def own_code_values(model: Architecture, parameters: EngineParameters) -> dict[str, Any]:
    """Return what has a model's own code run and no flag sets, by field; nothing for a model that has none."""
    own = parameters.rules.own_code.get(model.model_type)
    if own is None:
        return {}
    missing: dict[str, Any] = {} if parameters.trust_remote_code else {"trust_remote_code": True}
    ranks = any(weight.path == "classifier" for weight in model.outer_weights)
    named = own.ranks if ranks else own.embeds
    overrides = parameters.hf_overrides or {}
    if named and overrides.get("architectures") != [named]:
        missing["hf_overrides"] = {**overrides, "architectures": [named]}
    return missing

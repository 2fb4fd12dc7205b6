"""The engine's parameters, as `GET /ai/help/inference-engine-parameters` lists them."""

from __future__ import annotations

from pydantic import Field

from exo_inference.wire.base import WireModel


class EngineParameter(WireModel):
    """One flag of the engine. `default` is text, whatever the type."""

    name: str
    flags: list[str]
    type: str
    default: str = ""
    section: str
    description: str
    allowed_values: list[str] = Field(default_factory=list)


class EngineParameterList(WireModel):
    """Answer of the help route."""

    parameters: list[EngineParameter]

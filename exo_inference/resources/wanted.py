"""What somebody wants of one deployment, whichever way it was written.

A body of the API, a manifest, an object of a cluster and a command line each become one `WantedDeployment`
where they are read; whoever judges, compares or sends it works with that. What is recorded is a
`DeploymentSpec`, in which nothing is open any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from exo_inference.resources.deployment import InferenceDeployment
from exo_inference.wire import Deployment, ModelRef


@dataclass(frozen=True, slots=True)
class WantedDeployment:
    """One deployment as it is asked for; None is left open.

    Attributes:
        engine_parameters: the engine's flags, one item each.
        engine_version: the release whose flags they are.
    """

    name: str | None = None
    model: ModelRef | None = None
    gpu_type: str | None = None
    gpu_count: int | None = None
    replicas: int | None = None
    engine: str | None = None
    engine_version: str | None = None
    engine_parameters: tuple[str, ...] | None = None
    product_name: str | None = None

    @classmethod
    def of(cls, deployment: InferenceDeployment) -> Self:
        """Return what an object asks for."""
        spec = deployment.spec
        return cls(
            name=deployment.metadata.name,
            model=ModelRef(name=spec.model),
            gpu_type=spec.gpu_type,
            gpu_count=spec.gpu_count,
            replicas=spec.replicas,
            engine=spec.engine.name,
            engine_version=spec.engine.version,
            engine_parameters=spec.engine_parameters,
            product_name=spec.product_name,
        )

    @classmethod
    def of_manifest(cls, name: str, spec: Mapping[str, Any]) -> Self:
        """Return what a manifest asks for by the fields that it has."""
        engine, flags = spec.get("engine", {}), spec.get("engineParameters")
        return cls(
            name=name,
            model=ModelRef.parse(spec["model"]),
            gpu_type=spec.get("gpuType"),
            gpu_count=spec.get("gpuCount"),
            replicas=spec.get("replicas"),
            engine=engine.get("name"),
            engine_version=engine.get("version"),
            engine_parameters=None if flags is None else tuple(flags),
            product_name=spec.get("productName"),
        )

    @classmethod
    def of_view(cls, deployment: Deployment) -> Self:
        """Return what a deployment that the API shows was asked for; the product is not shown."""
        engine, _, release = (deployment.inference_engine or "").partition(" ")
        return cls(
            name=deployment.name,
            model=deployment.model,
            gpu_type=deployment.gpu_type,
            gpu_count=deployment.gpu_count,
            replicas=deployment.replicas,
            engine=engine or None,
            engine_version=deployment.inference_engine_version or release or None,
            engine_parameters=tuple(deployment.inference_engine_parameters or ()),
        )

    def to_manifest(self) -> dict[str, Any]:
        """Return the fields of a manifest that ask for this; what is open is not among them."""
        model, flags = self.model or ModelRef(), self.engine_parameters
        engine = {"name": self.engine, "version": self.engine_version}
        spec = {
            "model": model.name or model.id,
            "gpuType": self.gpu_type,
            "gpuCount": self.gpu_count,
            "replicas": self.replicas,
            "engine": {key: each for key, each in engine.items() if each is not None} or None,
            "engineParameters": None if flags is None else list(flags),
            "productName": self.product_name,
        }
        return {key: each for key, each in spec.items() if each is not None}

    def over(self, below: WantedDeployment) -> WantedDeployment:
        """Return this, with what it leaves open as another one has it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(below, **{name: each for name, each in values.items() if each is not None})

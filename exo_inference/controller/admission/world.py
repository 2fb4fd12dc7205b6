"""What a request is judged against: what is stored, and what the platform has. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from exo_inference.controller.admission.architectures import KnownModel
from exo_inference.controller.admission.host_room import (
    ReservationRequest,
    Reservations,
    model_sizes,
    read_reservations,
)
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.resources import (
    InferenceDeployment,
    InferenceModel,
)
from exo_inference.wire import ModelRef


@dataclass(frozen=True, slots=True)
class World:
    """What a request is judged against. Objects that are being deleted are in it, marked.

    Attributes:
        known: models that were looked up for this request, by name.
    """

    models: tuple[InferenceModel, ...]
    deployments: tuple[InferenceDeployment, ...]
    families: tuple[InstanceTypeInfo, ...]
    known: Mapping[str, KnownModel] = field(default_factory=dict)

    @property
    def reservations(self) -> Reservations:
        """The machine that all replicas share, and what was admitted to it."""
        return read_reservations(self.families, self.deployments, self.models)

    def without(self, uid: str) -> World:
        """Return the same without one deployment, whose name and memory are then free for it."""
        others = tuple(each for each in self.deployments if each.metadata.uid != uid)
        return replace(self, deployments=others)

    def reservation(self, model: str, replicas: int, uid: str | None = None) -> ReservationRequest:
        """Return what one deployment asks of the memory of that machine."""
        size = model_sizes(self.models).get(model, 0)
        return ReservationRequest(self.reservations, uid, replicas, self.families, size)


def find_family(
    gpu_type: str | None, families: Sequence[InstanceTypeInfo]
) -> InstanceTypeInfo | None:
    """Return the GPU family of that name; None if there is none."""
    return next((each for each in families if each.family == gpu_type), None)


def find_model(ref: ModelRef, models: Sequence[InferenceModel]) -> InferenceModel | None:
    """Return the model that a reference means, by id, by name, or by both; None if there is none."""
    for model in models:
        is_named = not ref.name or model.spec.source == ref.name
        if is_named and (not ref.id or _has_id(model, ref.id)) and (ref.id or ref.name):
            return model
    return None


def _has_id(model: InferenceModel, uid: str | None) -> bool:
    return uid is not None and model.metadata.uid == uid.lower()

"""Bodies of the API that ask for a deployment: read here, once, as one `WantedDeployment` and what is wrong.

Routes call these and hand both to `deployment.py`. What of a body is wrong is left open in what is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exo_inference.controller.admission.fields import Fields
from exo_inference.controller.admission.problems import Issue, field_issue
from exo_inference.resources.wanted import WantedDeployment
from exo_inference.wire import UpdateDeployment, WireModel

BodyReading = tuple[WantedDeployment, tuple[Issue, ...]]
"""What a body asks for, and what is wrong with its form."""

_ANOTHER = (
    "cannot be changed by an update; replace the deployment instead, which keeps its URL and key: "
    "PUT /ai/deployment/ID, or `exo dedicated-inference apply --replace`"
)
_NOT_BY_UPDATE = {
    "replicas": "cannot be changed by an update; scale the deployment instead: "
    "POST /ai/deployment/ID/scale, or `exo dedicated-inference deployment scale NAME REPLICAS`",
    "gpu-count": _ANOTHER,
    "gpu-type": _ANOTHER,
    "model": _ANOTHER,
    "inference-engine": _ANOTHER,
    "product-name": _ANOTHER,
}
"""Fields of a deployment that an update must not seem to change, and what to do instead."""


def read_wanted(
    form: type[WireModel], body: dict[str, Any], *, may_lack: Sequence[str] = ()
) -> BodyReading:
    """Read a body of this form, which may leave out some fields that the form requires."""
    fields = Fields(form, body, may_lack)
    return to_wanted(fields.values), tuple(fields.issues)


def read_update(body: dict[str, Any]) -> BodyReading:
    """Read the body of an update, which changes few of the fields."""
    wanted, issues = read_wanted(UpdateDeployment, body)
    others = [
        field_issue(key, text) for key, text in _NOT_BY_UPDATE.items() if body.get(key) is not None
    ]
    return wanted, (*issues, *others)


def to_wanted(values: Mapping[str, Any]) -> WantedDeployment:
    """Return what the fields of a body ask for."""
    flags = values.get("inference_engine_parameters")
    return WantedDeployment(
        name=values.get("name"),
        model=values.get("model"),
        gpu_type=values.get("gpu_type"),
        gpu_count=values.get("gpu_count"),
        replicas=values.get("replicas"),
        engine=values.get("inference_engine"),
        engine_version=values.get("inference_engine_version"),
        engine_parameters=None if flags is None else tuple(flags),
        product_name=values.get("product_name"),
    )

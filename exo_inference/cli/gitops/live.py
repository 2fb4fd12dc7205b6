"""What exists in a zone, in the words of the manifests, for `apply`, `diff`, `export` and what a write leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exo_inference.errors import NotFound
from exo_inference.resources import (
    InferenceDeployment,
    InferenceModel,
    model_object_name,
)
from exo_inference.resources.wanted import WantedDeployment
from exo_inference.wire import Deployment, Model

if TYPE_CHECKING:
    from exo_inference.sdk import Client

MODEL_KIND = InferenceModel.KIND
DEPLOYMENT_KIND = InferenceDeployment.KIND


@dataclass(frozen=True)
class LiveObject:
    """One object of the zone.

    Attributes:
        kind, id: what and which it is.
        name: what users call it: a deployment's name, a model's source.
        spec: its fields as a manifest would have them; those that the API does not show are absent.
        version: of a deployment; None where the API tells none.
        file_name: its `metadata.name` in the files that it is compared with or written to, if any.
    """

    kind: str
    name: str
    id: str
    spec: dict[str, Any]
    version: str | None = None
    file_name: str = ""

    @property
    def label(self) -> str:
        """What stands at the beginning of its line of output."""
        return label(self.kind, self.name)

    @property
    def object_name(self) -> str:
        """Its `metadata.name` in a manifest."""
        made = model_object_name(self.name) if self.kind == MODEL_KIND else self.name
        return self.file_name or made

    def manifest(self) -> str:
        """Return it as YAML that `apply` takes."""
        from exo_inference.resources.yaml import dump_manifest

        return dump_manifest(self.kind, self.object_name, self.spec)


def label(kind: str, name: str) -> str:
    """Return `kind/name`, as kubectl writes it."""
    return f"{kind.lower()}/{name}"


def is_on_the_hub(source: str) -> bool:
    """Whether a model comes from the Hub: neither built in nor a folder of the server."""
    return not source.startswith(("file:", "exo/"))


def read_live(
    client: Client, is_wanted: Callable[[str], bool] = lambda name: True
) -> list[LiveObject]:
    """Return the models and deployments of the client's zone.

    What is being deleted counts as gone: it cannot be changed any more, and creating it anew is
    refused by the server for as long as it is there, which is what the user needs to know. A second
    InferenceModel of one source, which kubectl can make, is left out: nothing uses it.

    Args:
        client: where to look.
        is_wanted: which deployments are read in full; the others keep the fields of the list.
    """
    models = [live_model(m) for m in client.models.list() if not _is_left_out(m.state_details)]
    deployments = []
    for deployment in client.deployments.list():
        if is_wanted(deployment.name):
            try:
                deployment = client.deployments.get(deployment.id)
            except NotFound:
                continue  # deleted since it was listed
        if not _is_going(deployment.state_details):
            deployments.append(live_deployment(deployment))
    return [*models, *deployments]


def live_model(model: Model) -> LiveObject:
    """Return a model in the words of a manifest.

    The revision of a model that is not from the Hub is a digest of what this machine has; a file
    that asked for it could not be applied anywhere else.
    """
    spec = {"source": model.name}
    if model.revision is not None and is_on_the_hub(model.name):
        spec["revision"] = model.revision
    return LiveObject(MODEL_KIND, model.name, model.id, spec)


def live_deployment(deployment: Deployment) -> LiveObject:
    """Return a deployment in the words of a manifest."""
    spec = WantedDeployment.of_view(deployment).to_manifest()
    name, version = deployment.name, deployment.version
    return LiveObject(DEPLOYMENT_KIND, name, deployment.id, spec, version)


def _is_left_out(state_details: str | None) -> bool:
    return _is_going(state_details) or (state_details or "").startswith("duplicate:")


def _is_going(state_details: str | None) -> bool:
    # The API has no state for it; these are the words of our own controller.
    return (state_details or "").startswith("deleting")

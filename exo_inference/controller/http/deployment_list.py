"""The list of all deployments as text, of which only what has changed is made anew.

Clients ask for it again and again, and of a thousand deployments few change between two lists. A resource is never
changed in place, so one that is the same object is shown by the same text; a store that reads its objects anew
each time gains nothing by this and loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from exo_inference.controller.http.views import view_deployment
from exo_inference.resources import InferenceDeployment


class _Shown(NamedTuple):
    deployment: InferenceDeployment
    model_id: str | None
    text: bytes


class ListedDeployments:
    """Remembers the texts of the last list."""

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = {}

    def answer(
        self, deployments: Sequence[InferenceDeployment], model_ids: Mapping[str, str]
    ) -> Response:
        """Return the answer with these deployments, in this order; `model_ids` are by source."""
        shown = {each.metadata.uid: self._show(each, model_ids) for each in deployments}
        self._shown = shown
        text = b",".join(each.text for each in shown.values())
        return Response(b'{"deployments":[' + text + b"]}", media_type="application/json")

    def _show(self, deployment: InferenceDeployment, model_ids: Mapping[str, str]) -> _Shown:
        model_id = model_ids.get(deployment.spec.model)
        known = self._shown.get(deployment.metadata.uid)
        if known is not None and known.deployment is deployment and known.model_id == model_id:
            return known
        view = view_deployment(deployment, model_ids, details=False)
        return _Shown(deployment, model_id, bytes(JSONResponse(view.to_wire()).body))


def listed_of(request: Request) -> ListedDeployments:
    """Return what the application that serves this request listed last."""
    found = request.state.listed
    assert isinstance(found, ListedDeployments)
    return found

"""What a release has beside its Deployment: without one of these it is not whole.

`platform.py` asks on every look, so what somebody deleted comes back: without the Service no request
finds a replica, without the NetworkPolicy anyone does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from exo_inference.kubernetes_api.client import KubernetesApi, get_if_there, object_path
from exo_inference.kubernetes_api.informer import Informer, Object
from exo_inference.platforms.kubernetes.names import (
    DEPLOYMENT_CHART,
    RELEASE_LABEL,
    UID_LABEL,
    is_part,
    label,
    release_names,
)

API_GROUPS = {
    "services": "",
    "poddisruptionbudgets": "policy/v1",
    "networkpolicies": "networking.k8s.io/v1",
}
"""The kinds, and the API group of each."""

_SWITCHES = {"poddisruptionbudgets": "podDisruptionBudget", "networkpolicies": "networkPolicy"}
"""The values that leave a kind out."""

ONLY_SERVICE = {switch: {"enabled": False} for switch in _SWITCHES.values()}
"""Values of a release with nothing but what cannot be left out."""


class Parts:
    """Follows the parts of all releases.

    Args:
        api: the Kubernetes API.
        on_change: called with every part that came, changed or went.
    """

    def __init__(self, api: KubernetesApi, on_change: Callable[[Object], None]) -> None:
        self._api = api
        self._followed = {
            plural: Informer(
                api,
                object_path(api, plural, group=group),
                query={"labelSelector": f"app.kubernetes.io/name={DEPLOYMENT_CHART}"},
                key_of=lambda item: label(item, UID_LABEL),
                on_change=on_change,
            )
            for plural, group in API_GROUPS.items()
        }
        self.informers = tuple(self._followed.values())

    def known_keys(self) -> set[str]:
        """Return the uids of all deployments of whose release there is a part."""
        known = {uid for informer in self.informers for uid in informer.known_keys()}
        return {uid for uid in known if self.find_release(uid)}

    def find_release(self, uid: str) -> str:
        """Return the name of the release whose parts are there for a deployment; empty is none."""
        names = release_names(uid)
        found = [item for informer in self.informers for item in informer.by_key(uid)]
        return next((label(item, RELEASE_LABEL) for item in found if is_part(item, names)), "")

    async def find_missing(self, release: str, values: Mapping[str, Any]) -> str:
        """Return the kind of a part that a release was installed with and that is gone, or nothing.

        Raises:
            StoreError: the API was away.
        """
        for plural in expected_parts(values):
            if self._followed[plural].get(release) is None and not await self._is_there(
                plural, release
            ):
                return plural
        return ""

    async def _is_there(self, plural: str, name: str) -> bool:
        """Ask the API: the watch may not have told yet of what Helm has just made."""
        path = object_path(self._api, plural, name, group=API_GROUPS[plural])
        found = await get_if_there(self._api, path)
        if found is not None:
            self._followed[plural].observe_answer(found)
        return found is not None


def expected_parts(values: Mapping[str, Any]) -> list[str]:
    """Return the kinds that the chart makes with these values."""
    return [
        plural
        for plural in API_GROUPS
        if plural not in _SWITCHES or values.get(_SWITCHES[plural], {}).get("enabled", True)
    ]

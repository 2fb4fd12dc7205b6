"""The real starts of a cluster: a ConfigMap that the leader writes and every controller reads.

It has the lines of the file of one machine (`start_log.py`). One object is enough because it is bounded:
what the API server keeps of it is never more than `MAX_BYTES`, far from its limit of 1 MiB.
"""

from __future__ import annotations

from exo_inference.controller.stores.start_log import format_line, parse_lines
from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi, get_if_there, object_path
from exo_inference.wire import PlanStart

NAME = "exo-inference-plan-starts"
"""Of the ConfigMap; the controller's role names it."""

MAX_STARTS = 200
MAX_BYTES = 2**18
_KEY = "plan-starts.jsonl"


class ClusterStarts:
    """The starts of a cluster.

    Args:
        api: of the cluster.
    """

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._path = object_path(api, "configmaps", NAME)

    async def read(self) -> list[PlanStart]:
        """Return what is recorded, oldest first.

        Raises:
            StoreError: the API does not answer, or refuses.
        """
        return parse_lines(await self._lines(), f"the ConfigMap {NAME}")

    async def append(self, start: PlanStart) -> None:
        """Add a start; the oldest ones beyond `MAX_STARTS` and `MAX_BYTES` go.

        Raises:
            StoreError: the API does not answer, or refuses.
        """
        lines = [*await self._lines(), format_line(start)][-MAX_STARTS:]
        while len(lines) > 1 and sum(len(line.encode()) + 1 for line in lines) > MAX_BYTES:
            del lines[0]
        data = {_KEY: "".join(f"{line}\n" for line in lines)}
        try:
            await self._api.merge(self._path, {"data": data})
        except ApiRefusal as exc:
            if exc.status_code != 404:
                raise
            body = {"metadata": {"name": NAME}, "data": data}
            await self._api.create(object_path(self._api, "configmaps"), body)

    async def _lines(self) -> list[str]:
        found = await get_if_there(self._api, self._path) or {}
        text: str = found.get("data", {}).get(_KEY, "")
        return [line for line in text.split("\n") if line.strip()]

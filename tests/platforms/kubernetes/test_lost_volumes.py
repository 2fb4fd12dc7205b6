"""A model whose volume goes: said, and fetched again. Real Helm, real API server, no controllers of claims."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from exo_inference.platforms.base import ModelPhase
from exo_inference.platforms.kubernetes.names import model_release_name
from tests.platforms.kubernetes.on_api_server import (
    MODEL,
    UID,
    FakeKubelet,
    Running,
    install_model,
    running,
    set_job_status,
    until_model,
)

CLAIM = model_release_name(UID)


def let_go(kubelet: FakeKubelet) -> None:
    """End the protection of the claim, as the cluster does when no pod uses it any more."""
    path = f"/api/v1/namespaces/{kubelet.api.namespace}/persistentvolumeclaims/{CLAIM}"
    body = {"metadata": {"finalizers": None}}
    kubelet.api.client.request("PATCH", path, body, content_type="application/merge-patch+json")


def jobs(kubelet: FakeKubelet) -> list[str]:
    found = json.loads(kubelet.api.kubectl("get", "jobs", "--output=json").stdout)["items"]
    return [item["metadata"]["uid"] for item in found]


async def until_loss(process: Running, words: str) -> None:
    async with asyncio.timeout(30):
        while words not in await process.models.find_loss(f"pvc:{CLAIM}"):
            await asyncio.sleep(0.05)


async def until_second_after_end(kubelet: FakeKubelet, job: str) -> None:
    """Wait for the second after the one in which a Job ended: times of objects are in whole seconds."""
    found = json.loads(kubelet.api.kubectl("get", "job", job, "--output=json").stdout)
    while datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") <= found["status"]["completionTime"]:
        await asyncio.sleep(0.02)


async def test_a_model_whose_volume_goes_says_so_and_is_fetched_again(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    api = kubelet.api
    async with running(api, tmp_path) as process:
        job = await install_model(process, MODEL)
        set_job_status(api, job, "Complete")
        observed = await until_model(process, MODEL, ModelPhase.READY)
        assert observed.path == f"pvc:{CLAIM}"
        assert await process.models.find_loss(observed.path) == ""
        before = jobs(kubelet)

        api.kubectl("delete", "persistentvolumeclaim", CLAIM, "--wait=false")
        await until_loss(process, "its volume is being deleted")
        observed = await process.models.apply_model(MODEL)
        assert observed.phase is ModelPhase.PREPARING
        assert jobs(kubelet) == before  # nothing can be brought onto it, and pods may still read it

        let_go(kubelet)
        await until_loss(process, f"there is no PersistentVolumeClaim {CLAIM}")
        again = await install_model(process, MODEL)
        assert jobs(kubelet) != before
        assert await process.models.find_loss(f"pvc:{CLAIM}") == ""
        set_job_status(api, again, "Complete")
        await until_model(process, MODEL, ModelPhase.READY)


async def test_a_volume_that_somebody_made_anew_is_not_taken_for_the_old_one(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    api = kubelet.api
    async with running(api, tmp_path) as process:
        job = await install_model(process, MODEL)
        set_job_status(api, job, "Complete")
        await until_model(process, MODEL, ModelPhase.READY)
        before = jobs(kubelet)
        text = api.kubectl("get", "persistentvolumeclaim", CLAIM, "--output=json").stdout
        claim: dict[str, Any] = json.loads(text)
        api.kubectl("delete", "persistentvolumeclaim", CLAIM, "--wait=false")
        let_go(kubelet)
        await until_loss(process, "is gone")
        await until_second_after_end(kubelet, job)
        metadata = {key: claim["metadata"][key] for key in ("name", "labels", "annotations")}
        api.kubectl("create", "-f", "-", stdin=json.dumps({**claim, "metadata": metadata}))
        await until_loss(process, "")
        again = await install_model(process, MODEL)
        assert again == job  # by name: the values are the same
        assert jobs(kubelet) != before

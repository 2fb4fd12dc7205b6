"""What is deleted leaves nothing, with the real Helm on a real API server."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.platforms.kubernetes.on_api_server import (
    DESIRED,
    RELEASE,
    UID,
    FakeKubelet,
    running,
)


async def test_deletion_leaves_nothing(kubelet: FakeKubelet, tmp_path: Path) -> None:
    async with running(kubelet.api, tmp_path) as process:
        pod = await process.settle(DESIRED, kubelet)
        async with asyncio.timeout(60):
            while process.cluster.workloads.find(UID):
                assert not await process.platform.delete(UID)
                await asyncio.sleep(0.05)
        await process.cluster.jobs.wait(RELEASE)
        assert not await process.platform.delete(UID)  # its pod still finishes requests
        kubelet.remove_pod(pod)
        async with asyncio.timeout(60):
            while not await process.platform.delete(UID):
                await asyncio.sleep(0.05)
        assert await process.platform.deployments() == set()
    words = "services,networkpolicies,poddisruptionbudgets,deployments,pods,secrets"
    assert kubelet.api.kubectl("get", words, "--output=name").stdout == ""


async def test_objects_whose_record_is_gone_are_removed_too(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        await process.applied(DESIRED, kubelet)
        kubelet.api.kubectl("delete", "secret", "--selector=owner=helm")
        async with asyncio.timeout(60):
            while not await process.platform.delete(UID):
                await asyncio.sleep(0.05)
    assert kubelet.api.kubectl("get", "services,deployments", "--output=name").stdout == ""

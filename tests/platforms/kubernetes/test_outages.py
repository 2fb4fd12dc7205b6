"""What a killed Helm and an API server that restarts leave behind is made good, with the real Helm."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import os
import signal
from pathlib import Path

import pytest

from exo_inference.platforms.kubernetes.names import release_name
from exo_inference.platforms.kubernetes.records import list_revisions
from tests.desired_deployments import altered
from tests.kubernetes_api import KubernetesApi
from tests.platforms.kubernetes.on_api_server import (
    DESIRED,
    RELEASE,
    FakeKubelet,
    revisions,
    running,
)


@pytest.mark.parametrize("state", ["pending-install", "pending-upgrade", "pending-rollback"])
async def test_a_release_that_a_killed_helm_left_pending_is_repaired(
    kubelet: FakeKubelet, tmp_path: Path, state: str
) -> None:
    changed = altered(DESIRED, engine_parameters=("--seed=1",))
    async with running(kubelet.api, tmp_path) as process:
        await process.applied(DESIRED, kubelet)
        if state != "pending-install":
            await process.applied(changed, kubelet)
        newest = (await list_revisions(process.cluster.api, RELEASE))[-1]
    # A Helm that is killed leaves its record in this state; the objects may be there already.
    set_status(kubelet.api, newest.secret, state)
    desired = DESIRED if state == "pending-install" else changed
    async with running(kubelet.api, tmp_path) as process:
        async with asyncio.timeout(30):
            while [status for _, status in await revisions(process)][-1:] != ["deployed"]:
                await process.platform.apply(desired)
                await asyncio.sleep(0.05)
        await process.applied(desired, kubelet)
        assert {status for _, status in await revisions(process)} <= {"deployed", "superseded"}
        pod = await process.settle(desired, kubelet)
        assert pod


async def test_a_leader_that_was_replaced_while_it_was_paused_begins_nothing(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """Nor does it take the record of a Helm that the next leader runs for that of one that was killed."""
    changed = altered(DESIRED, engine_parameters=("--seed=1",))
    another = altered(DESIRED, uid="7d2d6f1e-6c3b-4f5e-9d55-3f1f5f0f7c11")
    async with running(kubelet.api, tmp_path) as process:
        await process.applied(DESIRED, kubelet)
        (revision,) = await list_revisions(process.cluster.api, RELEASE)
        set_status(kubelet.api, revision.secret, "pending-upgrade")
        process.cluster.begin_while(lambda: False)
        for desired in (changed, another):
            await process.platform.apply(desired)
            await process.cluster.jobs.wait(release_name(desired.uid))
        assert [status for _, status in await revisions(process)] == ["pending-upgrade"]
        assert (
            len(json.loads(kubelet.api.kubectl("get", "deployments", "-ojson").stdout)["items"])
            == 1
        )
        process.cluster.begin_while(lambda: True)
        await process.applied(changed, kubelet)
        assert {status for _, status in await revisions(process)} <= {"deployed", "superseded"}


async def test_a_roll_back_that_was_killed_does_not_bring_the_refused_version_back(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """Its objects are the old ones again, while the newest values that Helm knows are the refused."""
    bad = altered(DESIRED, engine_parameters=("--max-model-len=1",))
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        await process.applied(bad, kubelet)
        ended = {"terminated": {"exitCode": 78, "message": "exo-engine: error: too small"}}
        kubelet.set_state(kubelet.make_pod(), restarts=1, state=ended)
        await process.until(bad, lambda seen: "rolled back" in seen.failure)
        refused, rolled_back = (await list_revisions(process.cluster.api, RELEASE))[-2:]
    for revision, status in ((refused, "deployed"), (rolled_back, "pending-rollback")):
        set_status(kubelet.api, revision.secret, status)
    settled = f"inference.exo.dev/settled-revision={refused.number - 1}"
    kubelet.api.kubectl("annotate", "deployment", RELEASE, settled, "--overwrite")
    async with running(kubelet.api, tmp_path) as process:
        scaled = altered(bad, replicas=2)
        await process.until(scaled, lambda _: kubelet.deployment()["spec"]["replicas"] == 2)
        assert "max-model-len" not in json.dumps(kubelet.deployment()["spec"]["template"])
        states = [status for _, status in await revisions(process)]
        assert states[-1] == "deployed"
        assert set(states) <= {"deployed", "superseded"}
        count = len(states)
        await process.until(scaled, lambda _: True)
        assert len(await revisions(process)) == count


async def test_a_scaling_that_was_told_to_end_is_finished_by_the_next_leader(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """A leader that is replaced ends its Helm, which writes "failed", although the objects may be there already."""
    bad = altered(DESIRED, engine_parameters=("--max-model-len=1",))
    scaled = altered(bad, replicas=2)
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        await process.applied(bad, kubelet)
        ended = {"terminated": {"exitCode": 78, "message": "exo-engine: error: too small"}}
        kubelet.set_state(kubelet.make_pod(), restarts=1, state=ended)
        await process.until(bad, lambda seen: "rolled back" in seen.failure)
        await process.until(scaled, lambda _: kubelet.deployment()["spec"]["replicas"] == 2)
        served, cut_off = (await list_revisions(process.cluster.api, RELEASE))[-2:]
    set_status(kubelet.api, served.secret, "deployed")
    set_status(kubelet.api, cut_off.secret, "failed")
    settled = f"inference.exo.dev/settled-revision={served.number}"
    kubelet.api.kubectl("annotate", "deployment", RELEASE, settled, "--overwrite")
    async with running(kubelet.api, tmp_path) as process:
        await process.until(scaled, lambda _: True)
        for _ in range(3):
            await process.until(scaled, lambda _: True)
        found = await revisions(process)
        # By one revision, so not by a roll-back first, which would have ended the second replica.
        assert found[-1] == (cut_off.number + 1, "deployed")
        assert kubelet.deployment()["spec"]["replicas"] == 2
        assert "max-model-len" not in json.dumps(kubelet.deployment()["spec"]["template"])


async def test_a_release_that_failed_once_and_was_upgraded_since_is_left_alone(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    changed = altered(DESIRED, engine_parameters=("--seed=1",))
    async with running(kubelet.api, tmp_path) as process:
        await process.applied(DESIRED, kubelet)
        await process.settle(changed, kubelet)
        first = (await list_revisions(process.cluster.api, RELEASE))[0]
    set_status(kubelet.api, first.secret, "failed")
    async with running(kubelet.api, tmp_path) as process:
        before = await revisions(process)
        for _ in range(3):
            await process.until(changed, lambda _: True)
        assert await revisions(process) == before


def set_status(api: KubernetesApi, secret: str, status: str) -> None:
    """Let Helm's record say how its revision ended, to who asks by label and to Helm."""
    api.kubectl("label", "secret", secret, f"status={status}", "--overwrite")
    rewrite_status(api, secret, status)


def rewrite_status(api: KubernetesApi, secret: str, status: str) -> None:
    """Set the status inside Helm's record, as the label alone is not what Helm reads."""
    path = f"/api/v1/namespaces/{api.namespace}/secrets/{secret}"
    found = api.request("GET", path)
    packed = base64.b64decode(base64.b64decode(found["data"]["release"]))
    record = json.loads(gzip.decompress(packed))
    record["info"]["status"] = status
    packed = base64.b64encode(gzip.compress(json.dumps(record).encode()))
    found["data"]["release"] = base64.b64encode(packed).decode()
    api.request("PUT", path, found)


def kill_helm() -> bool:
    """Kill every Helm that this process has started, with SIGKILL; True when there was one."""
    killed = False
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = directory.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            words = directory.joinpath("cmdline").read_bytes().split(b"\0")
            if int(parent) == os.getpid() and words[0].endswith(b"helm"):
                os.kill(int(directory.name), signal.SIGKILL)
                killed = True
    return killed


async def test_a_helm_killed_at_any_moment_is_made_good(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        num_killed = 0
        for number, delay in enumerate((0.04, 0.07, 0.1, 0.13, 0.16, 0.2, 0.3, 0.5)):
            changed = altered(DESIRED, engine_parameters=(f"--seed={number}",))
            await process.platform.apply(changed)
            await asyncio.sleep(delay)  # somewhere in the middle of Helm's work
            num_killed += kill_helm()
            await process.applied(changed, kubelet)
            states = [status for _, status in await revisions(process)]
            assert states[-1] == "deployed"
            assert set(states) <= {"deployed", "superseded"}
        assert num_killed >= 3


@pytest.mark.parametrize("delay", [0.0, 0.15, 0.3])
async def test_an_api_server_that_restarts_in_the_middle_delays_and_loses_nothing(
    kubelet: FakeKubelet, tmp_path: Path, delay: float
) -> None:
    changed = altered(DESIRED, engine_parameters=("--seed=1",))
    async with running(kubelet.api, tmp_path) as process:
        await process.applied(DESIRED, kubelet)
        await process.platform.apply(changed)
        await asyncio.sleep(delay)
        kubelet.api.server.restart()  # on this thread: a daemon ends with the one that started it
        await process.applied(changed, kubelet)
        states = [status for _, status in await revisions(process)]
        assert states[-1] == "deployed"
        assert "pending" not in "".join(states)

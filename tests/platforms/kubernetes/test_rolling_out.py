"""Installing, scaling and updating with the real Helm on a real API server; pods come from a fake kubelet."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from exo_inference.platforms.base import (
    ObservedDeployment,
    ReplicaPhase,
)
from exo_inference.platforms.kubernetes import (
    PlatformValues,
)
from tests.desired_deployments import altered
from tests.platforms.kubernetes.on_api_server import (
    DESIRED,
    MODEL,
    RELEASE,
    UID,
    FakeKubelet,
    install_model,
    revisions,
    running,
)


async def test_a_deployment_is_installed_once_and_then_left_alone(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        first = await process.platform.apply(DESIRED)
        assert first.replicas == ()  # Helm goes on in the background
        pod = await process.settle(DESIRED, kubelet)
        observed = await process.platform.apply(DESIRED)
        assert [(r.name, r.phase, r.current) for r in observed.replicas] == [
            (pod, ReplicaPhase.READY, True)
        ]
        assert observed.replicas[0].address.endswith(":8000")
        assert observed.next_check_seconds >= 10
        assert await revisions(process) == [(1, "deployed")]
    async with running(kubelet.api, tmp_path) as process:  # another process adopts it
        observed = await process.platform.apply(DESIRED)
        assert [r.phase for r in observed.replicas] == [ReplicaPhase.READY]
        assert process.cluster.jobs.running(RELEASE) == ""
        assert await process.platform.deployments() == {UID}


async def test_scaling_to_zero_and_back_keeps_the_pods_of_the_version(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        template = kubelet.deployment()["spec"]["template"]
        for replicas in (0, 2):
            await process.applied(altered(DESIRED, replicas=replicas), kubelet)
            assert kubelet.deployment()["spec"]["replicas"] == replicas
            assert kubelet.deployment()["spec"]["template"] == template


async def test_an_update_whose_replica_fails_is_rolled_back_and_says_why(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    bad = altered(DESIRED, engine_parameters=("--max-model-len=1",))
    async with running(kubelet.api, tmp_path) as process:
        old = await process.settle(DESIRED, kubelet)
        await process.applied(bad, kubelet)
        new = kubelet.make_pod()
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        message = "exo-adapter: error: --max-model-len is too small"
        ended = {"terminated": {"exitCode": 78, "message": message}}
        kubelet.set_state(new, restarts=1, state=waiting, lastState=ended)
        observed = await process.until(bad, lambda seen: "rolled back" in seen.failure)
        assert "--max-model-len is too small" in observed.failure
        await process.until(
            bad, lambda _: kubelet.deployment()["spec"]["template"]["metadata"]["annotations"][
                "inference.exo.dev/engine-parameters"] == "[]",
        )  # fmt: skip
        kubelet.remove_pod(new)
        await process.until(bad, lambda seen: [r.name for r in seen.replicas] == [old])
        count = len(await revisions(process))
        # The version that serves is scaled meanwhile, and the refused one is not tried again.
        scaled = altered(bad, replicas=3)
        await process.until(scaled, lambda _: kubelet.deployment()["spec"]["replicas"] == 3)
        observed = await process.until(scaled, lambda _: True)
        assert "rolled back" in observed.failure
        assert len(await revisions(process)) == count + 1
        # Scaled to nothing and back, it still is the one before; nothing is said to serve.
        kubelet.remove_pod(old)
        for replicas, words in ((0, "starts when it is scaled up"), (1, "is being started")):
            scaled = altered(bad, replicas=replicas)
            await process.until(
                scaled, lambda _, n=replicas: kubelet.deployment()["spec"]["replicas"] == n
            )
            observed = await process.until(scaled, lambda _: True)
            assert words in observed.failure
            assert "serves on" not in observed.failure
            assert "max-model-len" not in json.dumps(kubelet.deployment()["spec"]["template"])
        # Asked again, it is tried again.
        again = altered(bad, restarted_at=datetime.now(UTC))
        await process.applied(again, kubelet)
        assert "max-model-len" in json.dumps(kubelet.deployment()["spec"]["template"])


async def test_after_a_roll_back_a_restart_is_of_what_serves(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    bad = altered(DESIRED, engine_parameters=("--bad",), before=DESIRED)
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        await process.applied(bad, kubelet)
        new = kubelet.make_pod()
        kubelet.set_state(new, state={"terminated": {"exitCode": 78, "message": "no"}})
        seen = await process.until(bad, lambda seen: bool(seen.refusal))
        kubelet.remove_pod(new)
        rolled = altered(bad, roll="r1", before=altered(DESIRED, roll="r1"), refusal=seen.refusal)

        def is_rolled(_: ObservedDeployment) -> bool:
            return "r1" in json.dumps(kubelet.deployment()["spec"]["template"]["metadata"])

        observed = await process.until(rolled, is_rolled)
        assert observed.refusal == seen.refusal
        count = len(await revisions(process))
        for _ in range(3):
            assert (await process.platform.apply(rolled)).refusal == seen.refusal
            await process.cluster.jobs.wait(RELEASE)
        assert len(await revisions(process)) == count
        assert "--bad" not in json.dumps(kubelet.deployment()["spec"])
        # Going back to what serves is no change of it.
        await process.until(altered(DESIRED, roll="r1"), lambda seen: not seen.failure)
        assert "r1" in json.dumps(kubelet.deployment()["spec"]["template"]["metadata"])


async def test_values_that_the_chart_refuses_are_named_and_the_release_stays_as_it_was(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        before = kubelet.deployment()["spec"]
    misspelled = PlatformValues(gpus={"cpu": {"nodeSelectr": {"a": "b"}}})
    async with running(kubelet.api, tmp_path, values=misspelled) as process:
        observed = await process.until(DESIRED, lambda seen: bool(seen.failure))
        assert "the chart refuses the values" in observed.failure
        assert "nodeSelectr" in observed.failure
        assert "Correct the platform's values" in observed.failure
        assert kubelet.deployment()["spec"] == before


async def test_failures_retries_and_models_in_one_life(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    bad = altered(DESIRED, engine_parameters=("--bad",))
    async with running(kubelet.api, tmp_path) as process:
        old = await process.settle(DESIRED, kubelet)
        await process.applied(bad, kubelet)
        new = kubelet.make_pod()
        kubelet.set_state(new, state={"terminated": {"exitCode": 78, "message": "no"}})
        await process.until(bad, lambda seen: "rolled back" in seen.failure)
        again = altered(bad, restarted_at=datetime.now(UTC) + timedelta(hours=1))
        await process.until(
            again,
            lambda seen: (
                [r.name for r in seen.replicas if r.phase is ReplicaPhase.DRAINING] == [new]
            ),
        )
        kubelet.remove_pod(new)
        assert {found.family for found in await process.platform.instance_types()} <= {"cpu"}
        await install_model(process, MODEL)
        assert await process.models.models() == {UID}
        kubelet.remove_pod(old)
        async with asyncio.timeout(60):
            while not await process.platform.delete(UID):
                await asyncio.sleep(0.05)
            while not await process.models.delete_model(UID):
                await asyncio.sleep(0.05)

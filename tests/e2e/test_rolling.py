"""No request is lost while a deployment is scaled, updated and started anew, replica by replica."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import groupby

import pytest

from exo_inference import AsyncClient
from exo_inference.errors import Conflict

from .conftest import Stack
from .load import Load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]  # engines give way: a start may take minutes

BLOCKS = "--num-gpu-blocks-override=256"


async def ensure_model(client: AsyncClient, name: str = "exo/tiny-chat") -> None:
    """Have a built-in model; other tests of the same control plane may have made it."""
    with contextlib.suppress(Conflict):
        await client.models.create(name)
    model = await client.models.find(name)
    await client.models.wait_until_ready(model.id, timeout=60)


async def until_settled(client: AsyncClient, deployment_id: str, replicas: int) -> None:
    """Wait until all replicas are ready, none is left over, and nothing more is to be done."""
    while True:
        deployment = await client.deployments.get(deployment_id)
        assert deployment.state != "error", deployment
        if (
            deployment.state == "ready"
            and deployment.ready_replicas == replicas
            and len(deployment.replica_status or []) == replicas
        ):
            return
        await asyncio.sleep(0.1)


async def test_scaling_and_updating_under_load_loses_no_request(stack: Stack) -> None:
    async with AsyncClient(state_dir=stack.state_dir) as client:
        await ensure_model(client)
        created = await client.deployments.create(
            "rolling",
            model="exo/tiny-chat",
            gpu_type="cpu",
            replicas=1,
            engine_parameters=[BLOCKS],
        )
        uid = created.reference.id
        try:
            await until_settled(client, uid, 1)
            load = Load(f"{stack.gateway}/{uid}/v1", await client.deployments.reveal_api_key(uid))
            async with load.running():
                await client.deployments.scale(uid, 2)
                await until_settled(client, uid, 2)
                await client.deployments.update(uid, engine_parameters=[BLOCKS, "--max-num-seqs=8"])
                await asyncio.sleep(0.5)
                await until_settled(client, uid, 2)
                await client.deployments.scale(uid, 1)
                await asyncio.sleep(0.5)
                await until_settled(client, uid, 1)
                await client.deployments.update(uid, engine_parameters=[BLOCKS, "--max-num-seqs=9"])
                await asyncio.sleep(0.5)
                await until_settled(client, uid, 1)
                before = {
                    each.name for each in (await client.deployments.get(uid)).replica_status or ()
                }
                await client.deployments.restart(uid)
                await asyncio.sleep(0.5)
                await until_settled(client, uid, 1)
                after = {
                    each.name for each in (await client.deployments.get(uid)).replica_status or ()
                }
                assert before.isdisjoint(after)
                await client.deployments.update(uid, name="rolled")
                await asyncio.sleep(1)
        finally:
            await client.deployments.delete(uid)
            await client.deployments.wait_until_deleted(uid, timeout=60)
    print(load.summary())
    assert load.failures == []
    assert len(load.outcomes) > 50


async def test_replacing_the_model_under_load_loses_no_request(stack: Stack) -> None:
    """The old name is found until its last replica has left, the new one once its first is ready."""
    models = "exo/tiny-chat", "exo/tiny-draft"
    async with AsyncClient(state_dir=stack.state_dir) as client:
        for model in models:
            await ensure_model(client, model)
        created = await client.deployments.create(
            "replaced", model=models[0], gpu_type="cpu", replicas=2, engine_parameters=[BLOCKS]
        )
        uid = created.reference.id
        try:
            await until_settled(client, uid, 2)
            url, key = f"{stack.gateway}/{uid}/v1", await client.deployments.reveal_api_key(uid)
            old, new = (Load(url, key, num_workers=1, model=model) for model in models)
            async with old.running(), new.running():
                await client.deployments.replace(
                    uid, model=models[1], gpu_type="cpu", replicas=2, engine_parameters=[BLOCKS]
                )
                await asyncio.sleep(0.5)
                await until_settled(client, uid, 2)
                await asyncio.sleep(0.5)
        finally:
            await client.deployments.delete(uid)
            await client.deployments.wait_until_deleted(uid, timeout=60)
    print(old.summary(), new.summary(), sep="; ")
    statuses = [[each.error[:3] for each in load.outcomes] for load in (old, new)]
    assert [[status for status, _ in groupby(each)] for each in statuses] == [
        ["", "404"],
        ["404", ""],
    ]
    assert min(map(len, statuses)) > 20

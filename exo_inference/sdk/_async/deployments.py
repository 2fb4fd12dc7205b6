"""`client.deployments`: engine replicas that serve one model behind one endpoint."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any

from exo_inference.errors import UsageError
from exo_inference.sdk import _requests, lookup
from exo_inference.sdk._async import waits
from exo_inference.sdk._async.follow import follow_events, follow_logs
from exo_inference.sdk._requests import WriteOptions
from exo_inference.sdk.lookup import Versioned
from exo_inference.wire import (
    Deployment,
    EngineParameter,
    Event,
    InstanceType,
    LogEntry,
    ModelRef,
    Operation,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from exo_inference.sdk._async.client import AsyncClient


class AsyncDeployments:
    """The deployments of one zone."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(
        self,
        name: str,
        *,
        model: str | ModelRef,
        gpu_type: str,
        gpu_count: int = 1,
        replicas: int = 1,
        engine_parameters: Sequence[str] = (),
        engine_version: str | None = None,
        engine: str | None = None,
        product_name: str | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> Operation:
        """Create a deployment; `reference.id` of the answer is its id, `plan` what it takes.

        Args:
            name: a DNS label.
            model: name, id or reference of a model that exists.
            gpu_type: GPU family, as `instance_types()` lists them.
            gpu_count: GPUs per replica.
            replicas: engines that share the load; 0 creates it stopped (additive).
            engine_parameters: flags of the engine, one item each: `--max-model-len=4096`.
            engine_version: the release whose flags they are.
            engine: which engine (additive).
            product_name: identifier that usage is billed under.
            dry_run: only ask whether it would be admitted (additive).
            force: admit it although the plan says that it does not fit into memory (additive).

        Raises:
            UsageError: 0 replicas are asked for, and the API takes that for 1.
            BadRequest, PreconditionFailed: it is refused; `plan` of the error says what would fit.
        """
        fields = {
            "model": _requests.model_ref(model),
            "gpu-type": gpu_type,
            "gpu-count": gpu_count,
            "replicas": replicas,
            "inference-engine-parameters": _requests.parameter_list(engine_parameters) or None,
            "inference-engine-version": engine_version,
            "inference-engine": engine,
            "product-name": product_name,
        }
        options = WriteOptions(dry_run, force, stopped=replicas == 0)
        if options.stopped and not await self._client.can_create_stopped():
            raise UsageError(
                f"{await self._client.endpoint()} creates a deployment with at least 1 replica, found 0",
                hint="Create it with 1 and scale it to 0.",
            )
        call = _requests.create_deployment(name, fields, options)
        return await self._client.send_write(call, dry_run=dry_run)

    async def list(self) -> list[Deployment]:
        """List the deployments, without state details, parameters and version."""
        return await self._client.send(_requests.list_deployments())

    async def get(self, deployment_id: str) -> Deployment:
        """Return one deployment by its id."""
        return await self._client.send(_requests.get_deployment(deployment_id))

    async def find(self, name_or_id: str) -> Deployment:
        """Return the one deployment of that exact name or id, as the list shows it.

        Raises:
            NotFound, Conflict: there is none, or there are several.
        """
        return lookup.find(await self.list(), name_or_id, "deployment")

    async def update(
        self,
        deployment: str | Versioned,
        *,
        name: str | None = None,
        engine_parameters: Sequence[str] | None = None,
        engine_version: str | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> Operation:
        """Change what can be changed in place; None leaves a field as it is.

        Replicas that have failed are started again, also when nothing is changed.

        Args:
            deployment: its id; or as it was read, and then the change is refused if somebody else
                changed it since.
            name: its new name.
            engine_parameters: all of its flags from now on; an empty list clears them.
            engine_version: the release whose flags they are.
            dry_run: only ask whether it would be admitted (additive).
            force: admit it although the plan says that it does not fit into memory (additive).
        """
        parameters = engine_parameters
        fields = {
            "name": name,
            "inference-engine-parameters": None
            if parameters is None
            else _requests.parameter_list(parameters),
            "inference-engine-version": engine_version,
        }
        deployment_id, version = lookup.target(deployment)
        options = WriteOptions(dry_run, force, version)
        call = _requests.update_deployment(deployment_id, fields, options)
        return await self._client.send_write(call, dry_run=dry_run)

    async def replace(
        self,
        deployment: str | Versioned,
        *,
        model: str | ModelRef,
        gpu_type: str,
        gpu_count: int = 1,
        name: str | None = None,
        replicas: int | None = None,
        engine_parameters: Sequence[str] = (),
        engine_version: str | None = None,
        engine: str | None = None,
        product_name: str | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> Operation:
        """Let another specification take a deployment's place; id, URL and key stay (additive).

        It is judged as a create, before anything is changed. The new replicas start beside the old
        ones where there is room, and the old ones come back should the new ones not become ready.

        Args:
            deployment: its id; or as it was read, and then the change is refused if somebody else
                changed it since.
            model: name, id or reference of a model that exists.
            gpu_type: GPU family, as `instance_types()` lists them.
            gpu_count: GPUs per replica.
            name: its new name; None leaves it.
            replicas: engines that share the load; None leaves their number.
            engine_parameters: flags of the engine, one item each.
            engine_version: the release whose flags they are.
            engine: which engine; None is what runs on these GPUs.
            product_name: identifier that usage is billed under; None leaves it.
            dry_run: only ask whether it would be admitted.
            force: admit it although the plan says that it does not fit into memory.

        Raises:
            BadRequest, PreconditionFailed: it is refused, and nothing was changed.
            UsageError: the API cannot replace; Exoscale's cloud, for one.
        """
        if not await self._client.can_replace():
            raise UsageError(
                f"{await self._client.endpoint()} cannot replace a deployment; nothing was sent",
                hint="Create another deployment, and delete this one when that one is ready.",
            )
        fields = {
            "name": name,
            "model": _requests.model_ref(model),
            "gpu-type": gpu_type,
            "gpu-count": gpu_count,
            "replicas": replicas,
            "inference-engine-parameters": _requests.parameter_list(engine_parameters) or None,
            "inference-engine-version": engine_version,
            "inference-engine": engine,
            "product-name": product_name,
        }
        deployment_id, version = lookup.target(deployment)
        options = WriteOptions(dry_run, force, version)
        call = _requests.replace_deployment(deployment_id, fields, options)
        return await self._client.send_write(call, dry_run=dry_run)

    async def scale(
        self,
        deployment: str | Versioned,
        replicas: int,
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> Operation:
        """Set the number of replicas; 0 stops them all and keeps the deployment.

        Args:
            deployment: its id; or as it was read, and then the change is refused if somebody else
                changed it since.
            replicas: how many.
            dry_run: only ask whether it would be admitted (additive).
            force: admit replicas that the machine has no memory for; they wait (additive).
        """
        deployment_id, version = lookup.target(deployment)
        options = WriteOptions(dry_run, force, version)
        call = _requests.scale_deployment(deployment_id, replicas, options)
        return await self._client.send_write(call, dry_run=dry_run)

    async def restart(self, deployment_id: str, *, dry_run: bool = False) -> Operation:
        """Replace all replicas by new ones, as an update does: no request is lost (additive)."""
        call = _requests.restart_deployment(deployment_id, WriteOptions(dry_run))
        return await self._client.send_write(call, dry_run=dry_run)

    async def delete(self, deployment: str | Versioned, *, dry_run: bool = False) -> Operation:
        """Delete a deployment; its requests in flight are served first.

        Args:
            deployment: its id; or as it was read, and then the deletion is refused if somebody else
                changed it since.
            dry_run: only ask whether it would be admitted (additive).
        """
        deployment_id, version = lookup.target(deployment)
        options = WriteOptions(dry_run, version=version)
        call = _requests.delete_deployment(deployment_id, options)
        return await self._client.send_write(call, dry_run=dry_run)

    async def reveal_api_key(self, deployment_id: str) -> str:
        """Return the Bearer key of a deployment."""
        return (await self._client.send(_requests.reveal_api_key(deployment_id))).api_key

    async def openai_client(self, deployment_id: str) -> AsyncOpenAI:
        """Return a client of the package `openai` that asks a deployment: chat, tools, schemas, embeddings.

        Raises:
            UsageError: the package is not installed, or the deployment has no URL yet.
        """
        try:
            from openai import AsyncOpenAI
        except ImportError as exc:
            raise UsageError(
                "asking a deployment needs the package openai, which is not installed",
                hint="Install it with `pip install openai`.",
            ) from exc
        deployment = await self.get(deployment_id)
        if not deployment.deployment_url:
            raise UsageError(
                f'deployment "{deployment.name}" has no URL yet',
                hint="Wait for it with `wait_until_ready`.",
            )
        key = await self.reveal_api_key(deployment_id)
        return AsyncOpenAI(base_url=deployment.deployment_url, api_key=key)

    async def logs(
        self,
        deployment_id: str,
        *,
        tail: int | None = None,
        since: datetime | None = None,
        previous: bool = False,
        replica: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[LogEntry, None]:
        """Yield log lines, oldest first.

        A followed log goes on until the deployment is gone; where the connection breaks, it is
        made anew and no line is lost or repeated.

        Args:
            deployment_id: which one.
            tail: how many of the last lines; the server decides where it is None.
            since: only lines from then on, with a time zone (additive).
            previous: those of the engine run before this one (additive).
            replica: those of one replica (additive).
            follow: go on with new lines as they are written (additive).
        """
        query = _requests.log_query(tail=tail, since=since, previous=previous, replica=replica)
        if follow:
            async with aclosing(follow_logs(self._client, deployment_id, query, since)) as entries:
                async for entry in entries:
                    yield entry
            return
        for entry in await self._client.send(_requests.deployment_logs(deployment_id, query)):
            yield entry

    async def events(self, deployment_id: str) -> builtins.list[Event]:
        """List what happened to a deployment, newest last (additive)."""
        return (await self._client.send(_requests.list_events("deployment", deployment_id))).events

    async def follow_events(self, deployment_id: str) -> AsyncGenerator[Event, None]:
        """Yield what happened to a deployment and what happens, until it is gone (additive)."""
        async with aclosing(follow_events(self._client, "deployment", deployment_id)) as events:
            async for event in events:
                yield event

    async def instance_types(self) -> builtins.list[InstanceType]:
        """List the GPU families, and whether a deployment may use each."""
        return (await self._client.send(_requests.list_instance_types())).instance_types

    async def parameters(
        self,
        version: str | None = None,
        *,
        engine: str | None = None,
        gpu_type: str | None = None,
    ) -> builtins.list[EngineParameter]:
        """List the flags of an engine.

        Args:
            version: the release whose flags they are; None is the default one.
            engine: such as `exo` or `vllm`; None is what runs on the server's GPUs (additive).
            gpu_type: a GPU family, for what runs there (additive).
        """
        call = _requests.list_parameters(version, engine=engine, gpu_type=gpu_type)
        return (await self._client.send(call)).parameters

    async def wait_until_ready(
        self,
        deployment_id: str,
        *,
        timeout: float,
        on_change: Callable[[Deployment], None] | None = None,
        change: Operation | None = None,
        asked: Mapping[str, Any] | None = None,
    ) -> Deployment:
        """Wait until a deployment serves.

        Args:
            deployment_id: which one.
            timeout: seconds.
            on_change: called with the deployment whenever it looks different, first time included.
            change: what the change returned that has to be in effect; a later one ends the wait.
            asked: what it asked for, by fields of `Deployment`: a later change of other fields is
                no reason to end the wait then.

        Raises:
            Overwritten: the change is not in effect any more, and will not be.
            NotReady: it is in error or scaled to 0 (at once), or the time is over.
            NotFound: somebody deleted it meanwhile.
        """
        return await waits.wait_until_ready(
            self._client._http, lambda: self.get(deployment_id), timeout, on_change, change, asked
        )

    async def wait_until_scaled(
        self,
        deployment_id: str,
        *,
        timeout: float,
        on_change: Callable[[Deployment], None] | None = None,
        change: Operation | None = None,
        asked: Mapping[str, Any] | None = None,
        replaced: Collection[str] = (),
    ) -> Deployment:
        """Wait until as many replicas are ready as are wanted.

        Unlike `wait_until_ready` it is content with those of the version before, where an update was
        rolled back.

        Args:
            deployment_id: which one.
            timeout: seconds.
            on_change: called with the deployment whenever it looks different, first time included.
            change: what the change returned that has to be in effect; a later one ends the wait.
            asked: what it asked for, by fields of `Deployment`: a later change of other fields is
                no reason to end the wait then.
            replaced: names of replicas that have to be gone by then, as those from before a restart.

        Raises:
            Overwritten: the change is not in effect any more, and will not be.
            NotReady: it is in error (at once), or the time is over.
        """
        return await waits.wait_until_scaled(
            self._client._http,
            lambda: self.get(deployment_id),
            timeout,
            on_change,
            change,
            asked,
            replaced,
        )

    async def wait_until_deleted(
        self,
        deployment_id: str,
        *,
        timeout: float,
        on_change: Callable[[Deployment], None] | None = None,
    ) -> None:
        """Wait until a deployment is gone.

        Raises:
            NotReady: it is still there when the time is over.
        """
        await waits.wait_until_deleted(
            self._client._http, lambda: self.get(deployment_id), timeout, on_change
        )

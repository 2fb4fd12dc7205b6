"""`AsyncClient`: settings, the zone's endpoint, and one attribute per noun of the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from exo_inference.errors import ApiError, UsageError
from exo_inference.sdk import _requests
from exo_inference.sdk._async.api_keys import AsyncApiKeys
from exo_inference.sdk._async.deployments import AsyncDeployments
from exo_inference.sdk._async.models import AsyncModels
from exo_inference.sdk._async.operations import AsyncOperations
from exo_inference.sdk._async.zones import AsyncZones
from exo_inference.sdk._http import AsyncHandler, AsyncTransport
from exo_inference.sdk._messages import Call, T
from exo_inference.sdk._setup import http_options, resolve
from exo_inference.sdk.lookup import zone_endpoint
from exo_inference.settings import Flags, Settings
from exo_inference.wire import (
    CREATES_STOPPED,
    REPLACES,
    ConsumptionQuota,
    DeploymentPlan,
    KeyUsage,
    ModelRef,
    Operation,
    PlanStart,
    Zone,
)


class AsyncClient:
    """A client of the v2 AI API: of a control plane of this project, or of Exoscale's cloud.

    What is not given comes from the environment and the configuration file, as the command line
    takes it. With a zone, the zone's own endpoint is looked up at the first request; with an
    endpoint and no zone, that endpoint is used as it is.

    Attributes:
        models, deployments, api_keys, operations, zones: the nouns of the API.
    """

    def __init__(
        self,
        key: str | None = None,
        secret: str | None = None,
        *,
        endpoint: str | None = None,
        zone: str | None = None,
        config_file: Path | str | None = None,
        account: str | None = None,
        state_dir: Path | str | None = None,
        timeout_seconds: float | None = None,
        transport: AsyncHandler | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Resolve the settings; nothing is sent yet.

        Args:
            key: the API key, `EXO…`; give `secret` too.
            secret: its secret.
            endpoint: the API's address with its prefix, as `http://127.0.0.1:8080/v2`.
            zone: the zone to work in.
            config_file: an `exoscale.toml` other than that in the standard places.
            account: the account of that file.
            state_dir: the state directory of a local control plane.
            timeout_seconds: limit of a request with its repeats; infinity for none.
            transport: an httpx transport, for tests and proxies.
            settings: settings that are resolved already; nothing is read then.

        Raises:
            UsageError, ConfigurationError: nothing usable is configured.
        """
        flags = Flags(
            key=key,
            secret=secret,
            endpoint=endpoint,
            zone=zone,
            config_file=config_file,
            account=account,
            state_dir=state_dir,
            timeout_seconds=timeout_seconds,
        )
        self.settings, direct = resolve(settings, flags)
        self._bind(AsyncTransport(http_options(self.settings), transport), owns_http=True)
        self._endpoint: str | None = self.settings.endpoint if direct else None
        self._zone: str | None = None if direct else self.settings.zone

    def _bind(self, http: AsyncTransport, *, owns_http: bool) -> None:
        self._http = http
        self._owns_http = owns_http
        self._can_dry_run = False
        self._has_features = False
        self._known_features: tuple[str, ...] | None = None
        self.models = AsyncModels(self)
        self.deployments = AsyncDeployments(self)
        self.api_keys = AsyncApiKeys(self)
        self.operations = AsyncOperations(self)
        self.zones = AsyncZones(self)

    def __repr__(self) -> str:
        where = self._endpoint or f"zone {self._zone or 'default'} of {self.settings.endpoint}"
        return f"<{type(self).__name__} {where}>"

    def for_zone(self, zone: str | Zone) -> AsyncClient:
        """Return a client of another zone that shares this one's connections.

        Args:
            zone: its name, or an entry of `zones.list()`, which saves a look-up.
        """
        other = object.__new__(type(self))
        other.settings = self.settings
        other._bind(self._http, owns_http=False)
        if isinstance(zone, str):
            other._zone, other._endpoint = zone, None
        else:
            other._zone = zone.name
            other._endpoint = zone_endpoint([zone], zone.name, self.settings.endpoint)
        return other

    async def endpoint(self) -> str:
        """Return the endpoint that requests go to, looking up the zone the first time."""
        if self._endpoint is None:
            zones = await self.zones.list()
            self._endpoint = zone_endpoint(zones, self._zone, self.settings.endpoint)
        return self._endpoint

    async def send(self, call: Call[T]) -> T:
        """Make one call of the API; the nouns are built on it."""
        response = await self._http.send(await self.endpoint(), call.request)
        return call.result(response)

    async def send_write(self, call: Call[Operation], *, dry_run: bool) -> Operation:
        """Make a call that changes something, or, for a dry run, one that must not."""
        if dry_run and not self._can_dry_run:
            await self._require_dry_run()
        return await self.send(call)

    async def can_replace(self) -> bool:
        """Whether the API can replace a deployment under its id (additive); it is asked once."""
        return REPLACES in (await self._features() or ())

    async def can_create_stopped(self) -> bool:
        """Whether the API can create a deployment with 0 replicas (additive); it is asked once."""
        return CREATES_STOPPED in (await self._features() or ())

    async def _require_dry_run(self) -> None:
        """Refuse a dry run where the server would ignore the argument and do it for real."""
        if await self._features() is None:
            raise UsageError(
                f"{await self.endpoint()} does not know dry runs; nothing was sent",
                hint="Leave out the dry run, or use a control plane of exo-inference.",
            )
        self._can_dry_run = True

    async def _features(self) -> tuple[str, ...] | None:
        """Return what a control plane of ours says that it can do; None for any other API."""
        if not self._has_features:
            try:
                found = (await self.status()).get("features")
                self._known_features = tuple(map(str, found)) if isinstance(found, list) else ()
            except ApiError as exc:
                if exc.status_code not in (400, 404, 405):
                    raise
                self._known_features = None
            self._has_features = True
        return self._known_features

    async def status(self) -> dict[str, Any]:
        """Return versions and processes of the control plane, as it reports them (additive)."""
        return await self.send(_requests.get_status())

    async def usage(self) -> list[KeyUsage]:
        """Return requests and tokens per deployment and key, on one machine (additive).

        Raises:
            PreconditionFailed: on a cluster, where gateways count for themselves.
        """
        return await self.send(_requests.list_usage())

    async def metrics(self) -> str:
        """Return the metrics of controller, gateway and engines for Prometheus, on one machine (additive).

        Raises:
            PreconditionFailed: on a cluster, where Prometheus asks gateways and engines itself.
        """
        return await self.send(_requests.get_metrics())

    async def quota(self) -> ConsumptionQuota:
        """Return the consumption quota of the organisation."""
        return await self.send(_requests.get_quota())

    async def plan(
        self,
        *,
        model: str | ModelRef | None = None,
        gpu_type: str,
        gpu_count: int = 1,
        engine_parameters: Sequence[str] = (),
        engine_version: str | None = None,
        engine: str | None = None,
        model_config: Mapping[str, Any] | None = None,
        with_advice: bool = True,
    ) -> DeploymentPlan:
        """Say what a deployment would take and give, without creating it (additive).

        Args:
            model: name, id or reference: of a model here, of the bundled catalogue, or of the Hub.
            gpu_type: a family, or a common name such as `H100`.
            gpu_count: GPUs of one replica.
            engine_parameters: flags of the engine, one item each.
            engine_version: the release whose flags they are.
            engine: such as `exo` or `vllm`; None is what the server runs on that GPU.
            model_config: a config.json, for a model that the server cannot look up.
            with_advice: look for what would fit, or be faster or cheaper.

        Returns:
            The plan; a deployment that does not fit has the verdict `refused`.

        Raises:
            BadRequest: the request makes no sense, such as an unknown GPU.
        """
        fields = {
            "model": None if model is None else _requests.model_ref(model),
            "model-config": None if model_config is None else dict(model_config),
            "gpu-type": gpu_type,
            "gpu-count": gpu_count,
            "inference-engine-parameters": _requests.parameter_list(engine_parameters) or None,
            "inference-engine-version": engine_version,
            "inference-engine": engine,
            "without-advice": None if with_advice else True,
        }
        return await self.send(_requests.plan_deployment(fields))

    async def plan_starts(self) -> list[PlanStart]:
        """Return the last real starts, predicted and measured, oldest first (additive)."""
        return await self.send(_requests.list_plan_starts())

    async def close(self) -> None:
        """Close the connections. Idempotent; a client from `for_zone` leaves them open."""
        if self._owns_http:
            await self._http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

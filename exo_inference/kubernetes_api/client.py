"""Requests to the Kubernetes API: plain JSON in and out, repeated through short outages.

The other modules of the package and `controller/cluster/leader.py` call it. It is the only import of the
`kubernetes` client, of which it uses the asynchronous half: configuration, credentials and their
renewal, connections. Its errors end here and become errors of the store contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.request import getproxies

import aiohttp
import yaml
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from exo_inference.errors import ConfigurationError, ObjectRefused, StoreUnreachable

MERGE_PATCH = "application/merge-patch+json"

FIELD_MANAGER = "exo-inference"
"""The owner that `metadata.managedFields` names for what the controller writes."""

ATTEMPT_SECONDS = 5.0
"""How long one attempt waits for its answer."""

OUTAGE_SECONDS = 10.0
"""How long a request is repeated: an API server that is restarted is back before that."""

WATCH_IDLE_SECONDS = 90.0
"""A watch that is silent for longer is dead: the server sends a bookmark about every minute."""

_BUSY = frozenset({429, 500, 502, 503, 504})
_LACKS_RIGHT = re.compile(r"is forbidden: User \"[^\"]+\" cannot ")
_ROLE_HINT = (
    "Upgrade the chart exo-inference, which brings the role, or give the account this right."
)
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ApiRefusal(ObjectRefused):
    """The API server answered with an error.

    Attributes:
        status_code: of the answer.
        reason: the word that Kubernetes has for it, such as `AlreadyExists`.
    """

    def __init__(
        self, message: str, *, status_code: int, reason: str, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status_code = status_code
        self.reason = reason


class KubernetesApi:
    """One API server, and the namespace that everything is kept in.

    Args:
        client: knows the server and the credentials; closed by `close`.
        namespace: of the objects.
        outage_seconds: how long a request is repeated.
    """

    def __init__(
        self, client: ApiClient, namespace: str, outage_seconds: float = OUTAGE_SECONDS
    ) -> None:
        self.namespace = namespace
        self._client = client
        self._outage_seconds = outage_seconds

    @classmethod
    async def connect(
        cls, kubeconfig: Path | None = None, namespace: str | None = None
    ) -> KubernetesApi:
        """Read the credentials; nothing is asked of the server yet.

        Args:
            kubeconfig: its current context is used; None is the pod's own service account.
            namespace: None is the context's, or the pod's.

        Raises:
            ConfigurationError: there are no credentials that can be read.
        """
        configuration = Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
                found = await asyncio.to_thread(_NAMESPACE_FILE.read_text)
            else:
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=str(kubeconfig), client_configuration=configuration
                )
                _, context = config.list_kube_config_contexts(str(kubeconfig))  # type: ignore[no-untyped-call]
                found = context["context"].get("namespace", "default")
        except (config.ConfigException, yaml.YAMLError, OSError, LookupError, TypeError) as exc:
            place = "of this pod" if kubeconfig is None else f"in {kubeconfig}"
            raise ConfigurationError(
                f"cannot read the Kubernetes credentials {place}: {exc}"[:400],
                hint="Run it in a pod with a service account, or name a kubeconfig.",
            ) from exc
        # With it aiohttp reads a .netrc and the proxies of the environment for each request, a tenth of its time.
        configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
        return cls(ApiClient(configuration), namespace or found.strip())

    def impatient(self) -> KubernetesApi:
        """Return the same API for callers that must know soon that it does not answer."""
        return KubernetesApi(self._client, self.namespace, 0.0)

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self._client.close()  # type: ignore[no-untyped-call]
        await asyncio.sleep(0.05)  # connections that were cut off finish closing in the loop

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Read an object or a list."""
        return await self._repeat("GET", path, query=query)

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in a collection.

        An attempt whose answer was lost is repeated, so `AlreadyExists` may mean this very object.
        """
        return await self._repeat("POST", path, body=body, query={"fieldManager": FIELD_MANAGER})

    async def merge(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change the fields that the body names, and own these alone."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self._repeat("PATCH", path, body=body, query=query, content_type=MERGE_PATCH)

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object."""
        return await self._repeat("PUT", path, body=body, query={"fieldManager": FIELD_MANAGER})

    async def delete(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Delete an object, or all of a collection that a selector finds."""
        return await self._repeat("DELETE", path, body=body, query=query)

    async def watch(
        self, path: str, query: Mapping[str, str]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of one watch request until the server ends it.

        Raises:
            ApiRefusal: it was refused.
            StoreUnreachable: it broke off, or was silent for too long.
        """
        limits = aiohttp.ClientTimeout(
            sock_connect=ATTEMPT_SECONDS, sock_read=WATCH_IDLE_SECONDS, total=None
        )
        try:
            response = await self._send("GET", path, {**query, "watch": "true"}, limits=limits)
            async with contextlib.aclosing(_lines(response)) as lines:
                async for line in lines:
                    yield json.loads(line)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            raise StoreUnreachable(f"the watch on {path} broke off: {exc!r}"[:300]) from exc

    async def lines(
        self, path: str, query: Mapping[str, str], *, idle_seconds: float | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield the lines of a text, such as a log, until the server ends it.

        Args:
            path: of the text.
            query: of the request.
            idle_seconds: how long the server may be silent; None is for ever, as a log may be.

        Raises:
            ApiRefusal: it was refused.
            StoreUnreachable: it broke off.
        """
        limits = aiohttp.ClientTimeout(
            sock_connect=ATTEMPT_SECONDS, sock_read=idle_seconds, total=None
        )
        try:
            response = await self._send("GET", path, query, limits=limits)
            rest = b""
            try:
                async for chunk in response.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line.decode(errors="replace")
            finally:
                _abort(response)
            if rest:
                yield rest.decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise StoreUnreachable(f"reading {path} broke off: {exc!r}"[:300]) from exc

    async def _repeat(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str | None = None,
    ) -> dict[str, Any]:
        """Send a request until there is an answer that another attempt would not change."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._outage_seconds
        delay = 0.1
        while True:
            problem: Exception
            try:
                limits = aiohttp.ClientTimeout(total=ATTEMPT_SECONDS)
                response = await self._send(method, path, query, body, content_type, limits)
                parsed: dict[str, Any] = json.loads(await response.read())
                return parsed
            except ApiRefusal as exc:
                if exc.status_code not in _BUSY:
                    raise
                problem = exc
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
                problem = exc
            if loop.time() + delay > deadline:
                raise StoreUnreachable(
                    f"the Kubernetes API did not answer {method} {path}, repeated for "
                    f"{self._outage_seconds:.0f} s: {problem!r}"[:400],
                    hint="Check that the API server is up; what runs goes on. Then repeat.",
                ) from problem
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311 -- not a secret
            delay = min(delay * 2, 1.0)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str | None = None,
        limits: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        """Send one request; return the answer, unread, if it is a success."""
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type or "application/json"
        method, url, headers, data, _ = await self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._client.rest_client.request(  # type: ignore[no-untyped-call]
            method, url, headers=headers, body=data, _request_timeout=limits
        )
        response: aiohttp.ClientResponse = answer.response
        if response.status >= 400:
            raise _refusal(method, path, response.status, await response.read())
        return response


def object_path(api: KubernetesApi, plural: str, name: str = "", *, group: str = "") -> str:
    """Return the path of a collection, or of one object in it; no group is the core's."""
    root = f"/apis/{group}" if group else "/api/v1"
    path = f"{root}/namespaces/{api.namespace}/{plural}"
    return f"{path}/{name}" if name else path


class Readable(Protocol):
    """What one object can be read from."""

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return an object."""
        ...


async def get_if_there(api: Readable, path: str) -> dict[str, Any] | None:
    """Return an object, None where there is none.

    Raises:
        StoreError
    """
    try:
        return await api.get(path)
    except ApiRefusal as exc:
        if exc.status_code != 404:
            raise
        return None


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        async for line in response.content:
            yield line
    finally:
        _abort(response)


def _abort(response: aiohttp.ClientResponse) -> None:
    """Hang up. A polite end of the encryption would wait for the server, which has more to send."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


def _refusal(method: str, path: str, status: int, body: bytes) -> ApiRefusal:
    try:
        found = json.loads(body)
        reason, message = str(found.get("reason", "")), str(found.get("message", ""))
    except (ValueError, AttributeError):
        reason, message = "", body.decode(errors="replace")
    text = message[:256] or f"{method} {path} was answered {status}"
    hint = _ROLE_HINT if status == 403 and _LACKS_RIGHT.search(text) else None
    return ApiRefusal(text, status_code=status, reason=reason, hint=hint)

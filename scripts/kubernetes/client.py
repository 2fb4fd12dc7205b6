"""A small client of the Kubernetes API for the test cluster itself and for its tests.

Only the standard library, so that it neither depends on nor hides what the product's own client does.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TIMEOUT_SECONDS = 10
_TOKEN_SECONDS = 24 * 3600


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(f"{status_code}: {message}")
        self.status_code = status_code


@dataclass(frozen=True, slots=True)
class ApiClient:
    """One user of one API server.

    Attributes:
        url: of the server.
        certificate: what the server's certificate is checked by, in PEM.
        token: of the user.
    """

    url: str
    certificate: str = field(repr=False)
    token: str = field(repr=False)

    @classmethod
    def from_kubeconfig(cls, path: Path) -> ApiClient:
        """Return the user of a kubeconfig that `write_kubeconfig` wrote."""
        config = json.loads(path.read_text())
        cluster = config["clusters"][0]["cluster"]
        certificate = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(cluster["server"], certificate, config["users"][0]["user"]["token"])

    def write_kubeconfig(self, path: Path, user: str, namespace: str) -> None:
        """Write a kubeconfig (in JSON, which is YAML) whose context has the namespace."""
        certificate = base64.b64encode(self.certificate.encode()).decode()
        cluster = {"server": self.url, "certificate-authority-data": certificate}
        context = {"cluster": "test", "user": user, "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        write_private(path, json.dumps(config, indent=1))

    def as_service_account(self, namespace: str, name: str) -> ApiClient:
        """Return a client with a real token of a service account that exists.

        Raises:
            ApiError: there is no such account.
        """
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        answer = self.request("POST", path, {"spec": {"expirationSeconds": _TOKEN_SECONDS}})
        return ApiClient(self.url, self.certificate, answer["status"]["token"])

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
    ) -> Any:
        """Send one request and return the parsed answer.

        Raises:
            ApiError: the answer is an error.
            OSError: no answer, or not all of it.
        """
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": content_type},
        )
        try:
            text = self._answer(request)
        except http.client.HTTPException as exc:  # which is no OSError
            raise ConnectionError(f"{method} {path}: the answer was cut off: {exc!r}") from exc
        return json.loads(text) if text.startswith("{") else text

    def _answer(self, request: urllib.request.Request) -> str:
        context = ssl.create_default_context(cadata=self.certificate)
        try:
            with urllib.request.urlopen(
                request, timeout=_TIMEOUT_SECONDS, context=context
            ) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as exc:
            raise ApiError(exc.code, exc.read().decode()) from exc

    def create_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace.

        Raises:
            ApiError: there is one of that name.
        """
        metadata = {"name": name, "labels": dict(labels or {})}
        self.request("POST", "/api/v1/namespaces", {"metadata": metadata})


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    path.touch(mode=0o600)
    path.write_text(text)

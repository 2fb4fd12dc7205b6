"""etcd and kube-apiserver: a real Kubernetes API in a few seconds, without nodes or controllers.

Real here: validation, CRDs with CEL rules, server-side apply, watches with 410, RBAC, tokens of
service accounts, Leases. Not here, because nothing runs that does it: deletion of what a namespace
or an owner holds, pods. `cluster` adds those. Everything listens on loopback, etcd on a socket file,
and all state is in one directory. Used by the tests' fixture `kubernetes_api` and by `cluster`.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.free_ports import free_port
from scripts.kubernetes.client import ApiClient, ApiError, write_private
from scripts.kubernetes.processes import Daemon, DaemonFailed

USERS = {"admin": "system:masters", "engineer": "engineers", "viewer": "viewers"}
"""Users that have a token, and their group; all but `admin` may do nothing until RBAC lets them."""

_START_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Network:
    """Where the API server listens.

    Attributes:
        address: of this machine; pods, if there are any, must reach it there.
        port: None takes a free one.
    """

    address: str = "127.0.0.1"
    port: int | None = None


class ApiServer:
    """One API server and its etcd.

    Args:
        directory: for data, certificates, logs and kubeconfigs; its path must be short enough for
            a socket in it.
        programs: where `etcd` and `kube-apiserver` are.
        network: where it listens.
    """

    def __init__(
        self, directory: Path, programs: Mapping[str, Path], network: Network | None = None
    ) -> None:
        self.directory = directory
        self.logs = directory / "logs"
        self._network = network or Network()
        self._programs = programs
        self._tokens = {user: secrets.token_hex(16) for user in USERS}
        self._port = 0
        self.etcd: Daemon
        self.api_server: Daemon

    @property
    def url(self) -> str:
        """The server's address for clients on this machine."""
        return f"https://{self._network.address}:{self._port}"

    @property
    def certificate(self) -> Path:
        """Certificates that clients check the server's by."""
        return self.directory / "certificates" / "apiserver.crt"

    @property
    def service_account_key(self) -> Path:
        """Private key that tokens of service accounts are signed with."""
        return self.directory / "service-account.key"

    def __enter__(self) -> ApiServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start both and wait until the API answers.

        Raises:
            DaemonFailed
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        self._write_secrets()
        self.etcd = Daemon("etcd", self._etcd_command(), self.logs)
        self.etcd.start()
        self.etcd.wait_until((self.directory / "etcd.sock").exists)
        self._start_on_free_port()

    def stop(self) -> None:
        """End both; what was stored stays in the directory."""
        # The API server would wait for its open watches; nothing here needs an orderly end.
        for name in ("api_server", "etcd"):
            if daemon := getattr(self, name, None):
                daemon.kill()

    def restart(self) -> None:
        """Kill the API server and start it again, on the same port with the same data."""
        self.stop_api_server()
        self.start_api_server()

    def stop_api_server(self) -> None:
        """Kill the API server alone: an outage, until `start_api_server`."""
        self.api_server.kill()

    def start_api_server(self) -> None:
        """Start the API server again and wait until it answers."""
        self.api_server.start()
        self.api_server.wait_until(self._is_ready)

    def pause_etcd(self) -> None:
        """Stop etcd's clock: reads from its cache may go on, writes hang."""
        self.etcd.pause()

    def resume_etcd(self) -> None:
        """Let etcd go on."""
        self.etcd.signal(signal.SIGCONT)

    def kubeconfig(self, user: str = "admin", namespace: str = "default") -> Path:
        """Write a kubeconfig for one of `USERS` and return its path."""
        path = self.directory / f"kubeconfig.{user}.{namespace}"
        self.client(user).write_kubeconfig(path, user, namespace)
        return path

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Write a kubeconfig with a real token of a service account that exists; return its path.

        Raises:
            ApiError: there is no such account.
        """
        path = self.directory / f"kubeconfig.service-account.{namespace}.{name}"
        account = self.client().as_service_account(namespace, name)
        account.write_kubeconfig(path, name, namespace)
        return path

    def client(self, user: str = "admin") -> ApiClient:
        """Return a client that asks as one of `USERS`."""
        return ApiClient(self.url, self.certificate.read_text(), self._tokens[user])

    def _is_ready(self) -> bool:
        try:
            return bool(self.client().request("GET", "/readyz") == "ok")
        except ApiError:
            return False

    def _start_on_free_port(self) -> None:
        """Start the API server; on loopback another program may take the port in between."""
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._port = self._network.port or free_port()
            self.api_server = Daemon("kube-apiserver", self._api_server_command(), self.logs)
            try:
                self.start_api_server()
            except DaemonFailed as exc:
                if attempt == _START_ATTEMPTS or "address already in use" not in str(exc):
                    raise
            else:
                return

    def _write_secrets(self) -> None:
        lines = [f"{self._tokens[user]},{user},{user},{group}" for user, group in USERS.items()]
        write_private(self.directory / "tokens.csv", "\n".join(lines) + "\n")
        if not self.service_account_key.exists():
            key = subprocess.run(
                ["openssl", "genrsa", "2048"], capture_output=True, text=True, check=True
            )
            write_private(self.service_account_key, key.stdout)

    def _etcd_command(self) -> list[str | Path]:
        return [
            self._programs["etcd"],
            f"--data-dir={self.directory}/etcd",
            f"--listen-client-urls=unix://{self.directory}/etcd.sock",
            "--advertise-client-urls=http://127.0.0.1:2379",  # must be given; nobody asks for it
            "--listen-peer-urls=http://127.0.0.1:0",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _api_server_command(self) -> list[str | Path]:
        return [
            self._programs["kube-apiserver"],
            f"--etcd-servers=unix://{self.directory}/etcd.sock",
            f"--cert-dir={self.certificate.parent}",
            f"--bind-address={self._network.address}",
            f"--advertise-address={self._network.address}",
            f"--secure-port={self._port}",
            f"--token-auth-file={self.directory}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.service_account_key}",
            f"--service-account-signing-key-file={self.service_account_key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--kubelet-preferred-address-types=InternalIP",
        ]

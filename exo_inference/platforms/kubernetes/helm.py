"""Runs Helm: one short process per change, which waits for nothing but the API.

`cluster.py` calls it, in the background tasks of `jobs.py`. Values go in through stdin, so nothing of them
is on a command line or in a file with a name. Secrets are never among them: charts name the Secret. What a
change costs is mostly Helm's processor time (docs/benchmarks/kubernetes.md); what is done about it is done
here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from exo_inference.errors import ConfigurationError, PlatformError
from exo_inference.platforms.kubernetes.release_values import hash_of
from exo_inference.platforms.kubernetes.settings import KubernetesSettings

_GRACE_SECONDS = 3.0
"""How long Helm may take to end after SIGTERM; it writes down that it was stopped."""

_PASSED = ("PATH", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "TZ")  # fmt: skip

_TRANSIENT = (
    "connection refused", "connection reset", "i/o timeout", "tls handshake timeout",
    "context deadline exceeded", "client connection lost", "no such host", "unexpected eof",
    "http2:", "etcdserver:", "too many requests", "service unavailable", "internal error occurred: resource quota evaluation timed out",
    "cluster unreachable", "the object has been modified", "context canceled", "leader changed",
    "the server is currently unable", "request timed out", "no route to host", ": eof",
)  # fmt: skip
"""What Helm says when the API was away or busy, in lower case: another try may help."""

GO_ENVIRONMENT = {"GOGC": "off", "GOMEMLIMIT": "96MiB"}
"""Helm ends before its garbage is worth collecting, unless there is much of it."""

_NICENESS = "10"
"""A thousand changes at a time must not make the API slow, which shares this pod's processors."""

_OF_ONE_RELEASE = ("deployment", "model", "replicas", "podAnnotations", "commonLabels")
_OF_ONE_ENGINE = ("parameters", "servedModelName")
"""Values that differ between releases and whose place in the objects does not depend on them."""

_ESCAPED_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")

_PENDING = "another operation (install/upgrade/rollback) is in progress"


class HelmFailed(PlatformError):
    """Helm did not do what it was asked.

    Attributes:
        transient: the API was away; nothing is wrong with the release.
        pending: an earlier Helm was killed, and its record is in the way.
    """

    def __init__(self, message: str, *, transient: bool, pending: bool = False) -> None:
        super().__init__(message)
        self.transient = transient
        self.pending = pending


class Helm:
    """Helm on one namespace.

    Args:
        settings: charts, directories, limits.
        namespace: of the releases.
        environment: of this process; None takes it from there.

    Attributes:
        may_begin: whether this process may change releases now; asked before each change, as one
            that was paused meanwhile may have been replaced.
    """

    def __init__(
        self,
        settings: KubernetesSettings,
        namespace: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.may_begin: Callable[[], bool] = lambda: True
        self._settings = settings
        self._namespace = namespace
        own = os.environ if environment is None else environment
        self._program = find_helm(own)
        self._environment = _environment(settings, own)
        self._nice = _find_nice(own)
        self._slots = asyncio.Semaphore(settings.max_helm_processes)
        self._validated: set[str] = set()

    def chart_version(self, chart: str) -> str:
        """Return the version of a chart.

        Raises:
            ConfigurationError: the chart is not there.
        """
        path = self._settings.charts_dir / chart / "Chart.yaml"
        try:
            return str(yaml.safe_load(path.read_text(encoding="utf-8"))["version"])
        except (OSError, yaml.YAMLError, LookupError, TypeError) as exc:
            raise ConfigurationError(
                f"cannot read the chart {path.parent}: {exc}",
                hint="Point the setting charts_dir at the project's charts.",
            ) from exc

    async def upgrade(
        self, release: str, chart: str, values: Mapping[str, Any], *, reuse: bool = False
    ) -> None:
        """Install a release, or bring it to these values.

        Helm compares the objects with the cluster's schemas, which is half of its work, only the
        first time that values of this form come: then no field is unknown in any that follow. Types
        and limits are checked by the API server every time.

        Args:
            release: its name.
            chart: its chart.
            values: all of them, or with `reuse` those that change.
            reuse: begin with the values that the release has.

        Raises:
            HelmFailed
        """
        words = ["upgrade", release, str(self._settings.charts_dir / chart), "--values=-"]
        words += ["--reuse-values"] if reuse else ["--install"]
        words += [f"--history-max={self._settings.history_revisions}"]
        form = "" if reuse else form_of(chart, values)
        words += ["--disable-openapi-validation"] if form in self._validated else []
        await self._run(*words, stdin=as_yaml(values))
        if form:
            self._validated.add(form)

    async def rollback(self, release: str, revision: int) -> None:
        """Bring a release back to a revision, as a new revision.

        Raises:
            HelmFailed
        """
        limit = f"--history-max={self._settings.history_revisions}"
        await self._run("rollback", release, str(revision), limit)

    async def uninstall(self, release: str) -> None:
        """Remove a release; one that is gone already is no failure.

        Raises:
            HelmFailed
        """
        await self._run("uninstall", release, "--ignore-not-found")

    def check_may_begin(self) -> None:
        """Refuse to begin a change where another process may be at work on releases.

        Raises:
            HelmFailed
        """
        if not self.may_begin():
            text = "another controller may lead by now, so that this one begins nothing"
            raise HelmFailed(text, transient=True)

    async def _run(self, *words: str, stdin: str = "") -> None:
        # Not through a pipe: were this process paused before it has written all values, its Helm would
        # wait for them, and begin when another leads.
        async with self._slots, _filled(stdin) as values:
            self.check_may_begin()
            process = await asyncio.create_subprocess_exec(
                *self._nice,
                self._program,
                *words,
                f"--namespace={self._namespace}",
                stdin=values,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                start_new_session=True,  # Ctrl-C at a terminal is for us
            )
            try:
                async with asyncio.timeout(self._settings.helm_seconds):
                    _, said = await process.communicate()
            except TimeoutError as exc:
                text = f"Helm took longer than {self._settings.helm_seconds:.0f} s and was stopped"
                raise HelmFailed(text, transient=True) from exc
            finally:
                await _end(process)
        if process.returncode is not None and process.returncode < 0:
            raise HelmFailed(f"Helm was killed by signal {-process.returncode}", transient=True)
        if process.returncode != 0:
            raise read_failure(said.decode(errors="replace"))


def as_yaml(values: Mapping[str, Any]) -> str:
    """Return values as JSON that is YAML as well.

    Helm reads YAML, in which two escapes do not make one character, and which has some characters only escaped.
    """
    text = json.dumps(values, ensure_ascii=False)
    return _ESCAPED_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def form_of(chart: str, values: Mapping[str, Any]) -> str:
    """Return a hash that values have in common whose objects have the same fields."""
    form = {key: _outline(each) if key in _OF_ONE_RELEASE else each for key, each in values.items()}
    if isinstance(engine := form.get("engine"), Mapping):
        form["engine"] = {
            key: _outline(each) if key in _OF_ONE_ENGINE else each for key, each in engine.items()
        }
    return hash_of({"chart": chart, "values": form})


def _outline(value: object) -> object:
    """Return what charts look at before they use a value: its fields, and whether it is empty."""
    if isinstance(value, Mapping):
        return {key: _outline(each) for key, each in value.items()}
    return bool(value)


@contextlib.asynccontextmanager
async def _filled(text: str) -> AsyncIterator[IO[bytes]]:
    """Return a file without a name that holds the text, at its beginning."""
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        yield file


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process that still runs; asked first, so that it can write down that it failed."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def read_failure(said: str) -> HelmFailed:
    """Return what Helm's stderr means."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    start = next((n for n, line in enumerate(lines) if line.startswith("Error:")), None)
    words = lines[-1:] if start is None else lines[start:]
    message = " ".join(words).removeprefix("Error:").strip() or "Helm ended without a word"
    for prefix in ("UPGRADE FAILED:", "INSTALLATION FAILED:"):
        message = message.removeprefix(prefix).strip()
    lower = message.lower()
    return HelmFailed(
        message[:600],
        transient=any(sign in lower for sign in _TRANSIENT),
        pending=_PENDING in lower,
    )


def find_helm(environment: Mapping[str, str]) -> str:
    """Return Helm's program: beside this Python, where the package helm-binary puts it, else on the PATH.

    Raises:
        ConfigurationError
    """
    beside = Path(sys.executable).parent / "helm"
    found = str(beside) if beside.is_file() else shutil.which("helm", path=environment.get("PATH"))
    if found is None:
        raise ConfigurationError(
            f"there is no helm beside {sys.executable} or on the PATH",
            hint="Install it with `pip install 'exo-inference[kubernetes]'`.",
        )
    return found


def _find_nice(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words that a command is started with to be nice; none where that cannot be."""
    found = shutil.which("nice", path=environment.get("PATH"))
    return () if found is None else (found, "-n", _NICENESS)


def _environment(settings: KubernetesSettings, own: Mapping[str, str]) -> dict[str, str]:
    home = settings.work_dir
    found = {name: own[name] for name in _PASSED if name in own}
    found |= {
        "HOME": str(home),
        "HELM_CACHE_HOME": str(home / "cache"),
        "HELM_CONFIG_HOME": str(home / "config"),
        "HELM_DATA_HOME": str(home / "data"),
        "HELM_DRIVER": "secret",
        "KUBECACHEDIR": str(home / "kube"),
        **GO_ENVIRONMENT,
    }
    if settings.kubeconfig is not None:
        found["KUBECONFIG"] = str(settings.kubeconfig)
    return found

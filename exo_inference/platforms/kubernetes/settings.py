"""How the Kubernetes platform behaves. Built once where the process starts and passed down.

`PlatformValues` is the file `platform.json` that the chart `exo-inference` makes of its value
`platform`: what every release begins with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exo_inference.errors import ConfigurationError

Values = Mapping[str, Any]

_FIELDS = {
    "deploymentValues": "deployment",
    "modelValues": "model",
    "engineValues": "engines",
    "gpuValues": "gpus",
}
_SPANS_NODES = "spansNodes"


@dataclass(frozen=True, slots=True)
class PlatformValues:
    """What an administrator wants in every release; the platform's own values win over it."""

    deployment: Values = field(default_factory=dict)
    """Values of every deployment."""

    model: Values = field(default_factory=dict)
    """Values of every model."""

    engines: Mapping[str, Values] = field(default_factory=dict)
    """Values of the deployments of an engine, by its name."""

    gpus: Mapping[str, Values] = field(default_factory=dict)
    """Values of the deployments on a GPU family, by its name."""

    spans_nodes: bool = False
    """The cluster has LeaderWorkerSet, and the controller may use it (features.leaderWorkerSet)."""


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Everything the platform is told at its start."""

    charts_dir: Path
    """Directory with the charts inference-deployment and inference-model."""

    work_dir: Path
    """Where Helm keeps its cache and settings; only this process uses it."""

    kubeconfig: Path | None = None
    """Credentials for Helm, the same as those of the API; None is the pod's service account."""

    values: PlatformValues = field(default_factory=PlatformValues)
    """What every release begins with."""

    helm_seconds: float = 60.0
    """How long Helm may take, which waits for nothing but the API; then it is stopped."""

    max_helm_processes: int = 4
    """Helm processes at a time. Each takes about 90 MB; docs/benchmarks/kubernetes.md has its CPU time."""

    history_revisions: int = 10
    """Revisions of a release that are kept."""

    own_secrets: frozenset[str] = frozenset()
    """Names of Secrets that are not for models, though an administrator made them and nothing else says so."""


_DRAIN = {"preStopSeconds": 5.0, "timeoutSeconds": 120.0}
"""As in values.yaml of the chart inference-deployment."""

_KILL_SECONDS = 30.0
"""What the chart adds to them in terminationGracePeriodSeconds."""


def longest_drain_seconds(values: PlatformValues) -> float:
    """Return how long a pod may take to end, whatever its engine and GPU."""
    every = (values.deployment, *values.engines.values(), *values.gpus.values())
    drains = [drain for each in every if isinstance(drain := each.get("drain"), dict)]
    longest = {
        name: max([default, *(float(drain[name]) for drain in drains if name in drain)])
        for name, default in _DRAIN.items()
    }
    return sum(longest.values()) + _KILL_SECONDS


def read_platform_values(path: Path) -> PlatformValues:
    """Read `platform.json`.

    Raises:
        ConfigurationError: it cannot be read, or is not of its form.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigurationError(
            f"cannot read the platform's values from {path}: {exc}",
            hint="It is the value `platform` of the chart exo-inference.",
        ) from exc
    problem = _find_problem(found)
    if problem:
        raise ConfigurationError(
            f"{path}: {problem}", hint="Correct the value `platform` of the chart exo-inference."
        )
    values = {_FIELDS[key]: value for key, value in found.items() if key in _FIELDS}
    return PlatformValues(spans_nodes=found.get(_SPANS_NODES, False), **values)


def _find_problem(found: object) -> str | None:
    if not isinstance(found, dict):
        return f"expected an object, found {type(found).__name__}"
    known = {*_FIELDS, _SPANS_NODES}
    unknown = sorted(found.keys() - known)
    if unknown:
        return f"unknown {unknown[0]!r}; known: {', '.join(sorted(known))}"
    if not isinstance(found.get(_SPANS_NODES, False), bool):
        return f"{_SPANS_NODES} must be true or false"
    for key, value in found.items():
        if key == _SPANS_NODES:
            continue
        inner = (
            value.values()
            if isinstance(value, dict) and key.endswith(("eValues", "uValues"))
            else ()
        )
        if not isinstance(value, dict) or not all(isinstance(item, dict) for item in inner):
            return f"{key} must be an object of values"
    return None

"""The values of a deployment's release: what the chart `inference-deployment` is given. Pure.

Two hashes come with them. `spec_hash` is of everything: another one means that Helm has work to do.
`pods_hash` is of what a pod is made of: another one means that replicas are replaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exo_inference.engine_names import facts_of
from exo_inference.engines.registry import engine_release
from exo_inference.errors import PlatformError
from exo_inference.platforms.base import DesiredDeployment
from exo_inference.platforms.gpu_families import CPU_FAMILY
from exo_inference.platforms.kubernetes.names import PODS_ANNOTATION, release_name
from exo_inference.platforms.kubernetes.settings import PlatformValues
from exo_inference.resources import ROLL_ANNOTATION

CLAIM_PREFIX = "pvc:"
"""What the path of a model on a cluster begins with: `pvc:CLAIM` or `pvc:CLAIM/DIRECTORY`."""

_NOT_OF_PODS = ("replicas", "rollout", "affinity", "podDisruptionBudget", "networkPolicy", "autoscaling", "service")  # fmt: skip
_GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
_PLACING = ("nodeSelector", "affinity")


@dataclass(frozen=True, slots=True)
class Strategy:
    """How replicas are replaced."""

    max_surge: int = 1
    max_unavailable: int = 0


SURGE = Strategy()
"""A new replica first, then an old one goes: never below the wanted number ready."""

IN_PLACE = Strategy(max_surge=0, max_unavailable=1)
"""Where no GPU is free for one more: an old replica goes first, one at a time."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release as it is wanted.

    Attributes:
        unrolled_hash: what `pods_hash` would be had nobody asked for new replicas.
    """

    name: str
    values: Mapping[str, Any]
    spec_hash: str
    pods_hash: str
    unrolled_hash: str = ""

    @property
    def replicas(self) -> int | None:
        """Replicas wanted; None where an autoscaler decides."""
        if self.values.get("autoscaling", {}).get("enabled"):
            return None
        return int(self.values["replicas"])

    @property
    def roll(self) -> str:
        """Which of the requests for new replicas is the last; empty if there was none."""
        return str(self.values.get("podAnnotations", {}).get(ROLL_ANNOTATION, ""))


def build_release(
    desired: DesiredDeployment,
    given: PlatformValues,
    *,
    strategy: Strategy = SURGE,
    affinity: Mapping[str, Any] | None = None,
    nodes: int = 1,
    chart_version: str = "",
) -> Release:
    """Return the release of a deployment.

    Args:
        desired: the deployment.
        given: the administrator's values.
        strategy: how replicas are replaced; the administrator's own goes first.
        affinity: which nodes have the GPU; not used where the administrator says so.
        nodes: how many share the GPUs of one replica.
        chart_version: another one is another `spec_hash`.

    Raises:
        PlatformError: the model is not on a volume claim.
    """
    own = _own_values(desired, nodes)
    values = merged(given.deployment, given.engines.get(desired.engine, {}))
    values = merged(values, given.gpus.get(desired.spec.gpu_type, {}))
    if "rollout" not in values:
        own["rollout"] = {
            "maxSurge": strategy.max_surge,
            "maxUnavailable": strategy.max_unavailable,
        }
    if affinity and not is_placed(given, desired.spec.gpu_type):
        own["affinity"] = dict(affinity)
    if desired.spec.gpu_type != CPU_FAMILY and _GPU_TOLERATION not in values.get("tolerations", []):
        own["tolerations"] = [*values.get("tolerations", []), _GPU_TOLERATION]
    values = merged(values, own)
    pods_hash = unrolled_hash = _hash_of_pods(values)
    if desired.roll:
        values = merged(values, {"podAnnotations": {ROLL_ANNOTATION: desired.roll}})
        pods_hash = _hash_of_pods(values)
    values = merged(values, {"podAnnotations": {PODS_ANNOTATION: pods_hash}})
    spec_hash = hash_of({"values": values, "chart": chart_version})
    values = merged(values, {"deployment": {"specHash": spec_hash}})
    name = desired.release or release_name(desired.uid)
    return Release(name, values, spec_hash, pods_hash, unrolled_hash)


def is_placed(given: PlatformValues, gpu_type: str) -> bool:
    """Whether the administrator says himself which nodes a GPU family is on."""
    chosen = (given.deployment, given.gpus.get(gpu_type, {}))
    return any(values.get(key) for values in chosen for key in _PLACING)


def has_own_strategy(given: PlatformValues, desired: DesiredDeployment) -> bool:
    """Whether the administrator says himself how replicas are replaced."""
    chosen = (given.deployment, given.engines.get(desired.engine, {}), given.gpus.get(desired.spec.gpu_type, {}))  # fmt: skip
    return any("rollout" in values for values in chosen)


def _own_values(desired: DesiredDeployment, nodes: int) -> dict[str, Any]:
    claim, _, directory = split_claim(desired.model_path)
    engine: dict[str, Any] = {
        "name": desired.engine,
        "parameters": list(desired.spec.engine_parameters),
        "servedModelName": desired.spec.model,
    }
    # exo-engine has the project's own version; the one on the wire names vLLM's flags.
    if not facts_of(desired.engine).is_ours:
        engine["version"] = engine_release(desired.engine, desired.spec.engine.version)
    gpu_count = 0 if desired.spec.gpu_type == CPU_FAMILY else desired.spec.gpu_count // nodes
    return {
        **({"multiNode": {"size": nodes}} if nodes > 1 else {}),
        "deployment": {"name": desired.name, "uid": desired.uid},
        "replicas": desired.spec.replicas,
        "engine": engine,
        "model": {
            "source": desired.spec.model,
            "sizeBytes": desired.model_size_bytes,
            "claimName": claim,
            "subPath": directory,
        },
        "gpu": {"type": desired.spec.gpu_type, "count": gpu_count},
    }


def _hash_of_pods(values: Mapping[str, Any]) -> str:
    return hash_of({key: values[key] for key in values if key not in _NOT_OF_PODS})


def split_claim(path: str) -> tuple[str, str, str]:
    """Return claim, separator and directory of a model's path.

    Raises:
        PlatformError: it is a directory of a machine.
    """
    if not path.startswith(CLAIM_PREFIX):
        raise PlatformError(
            f"the model's files are in {path[:256]!r}, which pods cannot reach",
            hint="Delete the model and create it again, so that its files come onto a volume.",
        )
    return path.removeprefix(CLAIM_PREFIX).partition("/")


def merged(base: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with those above laid over them, as Helm does: lists are replaced.

    What only one of them has is shared with it: nobody changes values in place, and copying them for
    each look was a third of what a look costs.
    """
    result = dict(base)
    for key, value in above.items():
        before = result.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            result[key] = merged(before, value)
        else:
            result[key] = value
    return result


def hash_of(value: object) -> str:
    """Return a short hash that is the same for equal JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]

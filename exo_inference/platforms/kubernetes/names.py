"""Names that the platform gives and reads: releases, labels, annotations, paths of the API. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

DEPLOYMENT_CHART = "inference-deployment"
MODEL_CHART = "inference-model"

RELEASE_LABEL = "app.kubernetes.io/instance"
"""On the objects of a release: its name."""

UID_LABEL = "inference.exo.dev/deployment-uid"
MODEL_UID_LABEL = "inference.exo.dev/model-uid"
NAME_LABEL = "inference.exo.dev/deployment"
GPU_LABEL = "inference.exo.dev/gpu-type"
"""On pods: the GPU family of their replica."""

SPEC_LABEL = "inference.exo.dev/spec-hash"
"""On the objects of a release: hash of the values that it was installed with."""

PODS_ANNOTATION = "inference.exo.dev/pods-hash"
"""On pods: hash of that part of the values which a pod is made of."""

PARAMETERS_ANNOTATION = "inference.exo.dev/engine-parameters"
"""On pods: the flags of their engine, as a JSON array."""

SETTLED_REVISION = "inference.exo.dev/settled-revision"
"""On the Deployment: the newest revision of the release whose replicas all became ready."""

SETTLED_SPEC = "inference.exo.dev/settled-spec-hash"
SETTLED_PODS = "inference.exo.dev/settled-pods-hash"
REFUSED_PODS = "inference.exo.dev/refused-pods-hash"
"""On the Deployment: what an update was to make of the pods, and could not."""

REFUSED_AT = "inference.exo.dev/refused-at"
REFUSED_REASON = "inference.exo.dev/refused-reason"

INSTALLED_PODS = "inference.exo.dev/installed-pods"
"""On the Deployment: hashes of its values and of its pods' specification, as Helm left it."""

PUT_BACK_AT = "inference.exo.dev/put-back-at"
"""On the Deployment: when a change by hand was last undone."""

NODES_ANNOTATION = "inference.exo.dev/nodes-per-replica"
"""On a LeaderWorkerSet as it is read here, not on the cluster: the pods of one replica."""

ROLE_LABEL = "inference.exo.dev/node-role"
"""On pods of a replica that spans nodes: leader or worker."""

ENGINE_LABEL = "inference.exo.dev/engine"
ENGINE_CONTAINER = "engine"
DOWNLOAD_CONTAINER = "download"
ENGINE_PORT = 8000

_MAX_RELEASE_NAME = 53
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def release_name(uid: str) -> str:
    """Return the name of a deployment's release."""
    return _name("exo-d", uid)


def model_release_name(uid: str) -> str:
    """Return the name of a model's release."""
    return _name("exo-m", uid)


def release_names(uid: str) -> tuple[str, str]:
    """Return the names that a deployment's release may have: ours, and that of versions before."""
    return release_name(uid), _name("exo", uid)


def model_release_names(uid: str) -> tuple[str, str]:
    """Return the names that a model's release may have: ours, and that of versions before."""
    return model_release_name(uid), _name("exo-model", uid)


def _name(prefix: str, uid: str) -> str:
    name = f"{prefix}-{uid}"
    if len(name) <= _MAX_RELEASE_NAME and _DNS_LABEL.fullmatch(name):
        return name
    return f"{prefix}-{hashlib.sha256(uid.encode()).hexdigest()[:32]}"


def label(item: Mapping[str, Any], name: str) -> str:
    """Return a label of an object, empty where it has none."""
    return str(item["metadata"].get("labels", {}).get(name, ""))


def is_part(item: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether an object belongs to a release of one of these names."""
    return label(item, RELEASE_LABEL) in names


def annotation(item: Mapping[str, Any], name: str) -> str:
    """Return an annotation of an object, empty where it has none."""
    return str(item["metadata"].get("annotations", {}).get(name, ""))


def read_flags(text: str) -> tuple[str, ...] | None:
    """Return the flags that `PARAMETERS_ANNOTATION` holds; None where it does not say."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return tuple(map(str, found)) if isinstance(found, list) else None

"""What has to change so that a zone is as the files say. Pure: files and live objects in, changes out.

The rules: a field that the files do not name is left as it is; models come before the deployments
that need them, and what is pruned goes in the reverse order, at the end; only kinds that the files
have at all are pruned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from exo_inference.cli.gitops.live import DEPLOYMENT_KIND, MODEL_KIND, LiveObject, label
from exo_inference.resources import InferenceModel
from exo_inference.resources.yaml import Manifest, ManifestError, ManifestProblem

IN_PLACE = frozenset({"replicas", "engineParameters", "engine.version"})
"""Fields that the API changes on a deployment that runs; any other needs a new one."""

NOT_SHOWN = frozenset({"productName"})
"""Fields that the API takes and never shows, so that they cannot be compared."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


class Action(StrEnum):
    """What happens to one object."""

    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    UNCHANGED = "unchanged"
    DELETE = "delete"


@dataclass(frozen=True)
class FieldChange:
    """One field that differs. `field` is its path below `spec`."""

    field: str
    before: Any
    after: Any

    @property
    def in_place(self) -> bool:
        """Whether the API can change it without a new object."""
        return self.field in IN_PLACE

    def __str__(self) -> str:
        return f"{self.field}: {self.before!r} -> {self.after!r}"


@dataclass(frozen=True)
class Change:
    """What happens to one object, and why.

    Attributes:
        manifest: what is wanted; None for an object that is pruned.
        live: what is there; None for an object that is created.
    """

    action: Action
    kind: str
    name: str
    fields: tuple[FieldChange, ...] = ()
    manifest: Manifest | None = None
    live: LiveObject | None = None

    @property
    def label(self) -> str:
        """What stands at the beginning of its line of output."""
        return label(self.kind, self.name)


def find_changes(
    manifests: Sequence[Manifest], live: Sequence[LiveObject], *, prune: bool
) -> list[Change]:
    """Return what happens to each object, in the order in which it must happen.

    Raises:
        ManifestError: a deployment needs a model that is nowhere, or that would be pruned; a model names
            a Secret.
    """
    present = {(obj.kind, obj.name): obj for obj in live}
    ordered = sorted(manifests, key=lambda m: m.resource.kind != MODEL_KIND)  # stable: models first
    changes = [_find_change(manifest, present) for manifest in ordered]
    pruned = _find_pruned(manifests, live) if prune else []
    if problems := [*_token_secrets(manifests), *_missing_models(manifests, live, pruned)]:
        raise ManifestError(problems)
    return [*changes, *pruned]


def object_name(manifest: Manifest) -> str:
    """Return what users call the object: a deployment's name, a model's source."""
    resource = manifest.resource
    return resource.spec.source if isinstance(resource, InferenceModel) else resource.metadata.name


def merged_spec(change: Change) -> dict[str, Any]:
    """Return the whole spec as it will be: what is there, with what the files say."""
    live = dict(change.live.spec) if change.live else {}
    wanted = change.manifest.spec if change.manifest else {}
    merged = {**live, **wanted}
    if isinstance(live.get("engine"), dict) and isinstance(wanted.get("engine"), dict):
        merged["engine"] = {**live["engine"], **wanted["engine"]}
    return merged


def shown_fields(change: Change) -> dict[str, Any]:
    """Return what a change asks for, by the fields that the API shows of a deployment."""
    names = {
        "gpuType": "gpu_type",
        "gpuCount": "gpu_count",
        "replicas": "replicas",
        "engineParameters": "inference_engine_parameters",
        "engine.version": "inference_engine_version",
    }
    return {names[each.field]: each.after for each in change.fields if each.field in names}


def _find_change(manifest: Manifest, present: dict[tuple[str, str], LiveObject]) -> Change:
    kind, name = manifest.resource.kind, object_name(manifest)
    live = present.get((kind, name))
    if live is None:
        return Change(Action.CREATE, kind, name, manifest=manifest)
    fields = tuple(_differences(manifest.spec, live.spec))
    if not fields:
        action = Action.UNCHANGED
    elif all(field.in_place for field in fields):
        action = Action.UPDATE
    else:
        action = Action.REPLACE
    return Change(action, kind, name, fields, manifest, live)


def _differences(
    wanted: dict[str, Any], live: dict[str, Any], prefix: str = ""
) -> Iterator[FieldChange]:
    for key, after in wanted.items():
        field, before = prefix + key, live.get(key)
        if isinstance(after, dict):
            yield from _differences(after, before or {}, f"{field}.")
        elif before != after and not _is_beyond_comparison(field, before, after):
            yield FieldChange(field, before, after)


def _is_beyond_comparison(field: str, before: Any, after: Any) -> bool:
    if field == "revision":
        # The API shows the commit that a branch or tag was pinned to, not the branch.
        return before is None or not _COMMIT.fullmatch(after)
    # An API without the additive field says nothing about which engine it runs.
    return field in NOT_SHOWN or (field == "engine.name" and before is None)


def _find_pruned(manifests: Sequence[Manifest], live: Sequence[LiveObject]) -> list[Change]:
    kinds = {manifest.resource.kind for manifest in manifests}
    kept = {(manifest.resource.kind, object_name(manifest)) for manifest in manifests}
    surplus = [obj for obj in live if obj.kind in kinds and (obj.kind, obj.name) not in kept]
    surplus.sort(key=lambda obj: obj.kind != DEPLOYMENT_KIND)  # deployments before their models
    return [Change(Action.DELETE, obj.kind, obj.name, live=obj) for obj in surplus]


def _token_secrets(manifests: Sequence[Manifest]) -> Iterator[ManifestProblem]:
    for manifest in manifests:
        if "tokenSecret" in manifest.spec:
            yield manifest.problem(
                "spec.tokenSecret names a Secret of a cluster, which the API does not take: use "
                "--huggingface-token-file or HF_TOKEN instead, or `kubectl apply`"
            )


def _missing_models(
    manifests: Sequence[Manifest], live: Sequence[LiveObject], pruned: Sequence[Change]
) -> Iterator[ManifestProblem]:
    in_files = {object_name(m) for m in manifests if m.resource.kind == MODEL_KIND}
    doomed = {change.name for change in pruned if change.kind == MODEL_KIND}
    there = {key for obj in live if obj.kind == MODEL_KIND for key in (obj.name, obj.id)}
    for manifest in manifests:
        if manifest.resource.kind != DEPLOYMENT_KIND:
            continue
        model = manifest.spec["model"]
        if model in doomed:
            yield manifest.problem(
                f"spec.model {model} would be pruned: it is in none of the files"
            )
        elif model not in in_files | there:
            yield manifest.problem(
                f"spec.model {model} is neither in the files nor in the zone; "
                "add an InferenceModel with that source"
            )

"""Objects of the API as the fields that are printed: order, keys and words of the `exo` CLI.

What the API has beyond that CLI (ready replicas, progress of a download) comes after its fields,
and only where the server sent it. Pure; used by the commands that show or list something.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

from exo_inference.cli.rendering.output import Field, Record, Value

if TYPE_CHECKING:
    from exo_inference.wire import Deployment, InEffect, InstanceType, Model

T = TypeVar("T")

_NO_TIME = "0001-01-01T00:00:00Z"


@dataclass(frozen=True)
class InZone(Generic[T]):
    """An object of a list, with the zone it was found in."""

    item: T
    zone: str


@dataclass(frozen=True)
class Column(Generic[T]):
    """One field of a view: its names (see `output.Field`) and where its value comes from.

    An added column is left out of an object for which it gives None.
    """

    key: str
    go_name: str
    label: str
    get: Callable[[T], Value | None]
    added: bool = False
    other_name: str = ""


@dataclass(frozen=True)
class View(Generic[T]):
    """How objects of one kind are printed."""

    columns: tuple[Column[T], ...]

    @property
    def headers(self) -> tuple[str, ...]:
        """Labels of the table of a list."""
        return tuple(column.label for column in self.columns if not column.added)

    @property
    def field_names(self) -> tuple[str, ...]:
        """What a template may use, known before the server is asked; what it lacks is empty."""
        names = (name for each in self.columns for name in (each.go_name, each.other_name))
        return tuple(filter(None, names))

    def record(self, item: T) -> Record:
        """Return the fields of one object."""
        found = ((column, column.get(item)) for column in self.columns)
        return tuple(
            Field(
                column.key,
                column.go_name,
                column.label,
                _or_empty(value),
                column.added,
                column.other_name,
            )
            for column, value in found
            if value is not None or not column.added
        )


MODEL_LIST: View[InZone[Model]] = View(
    (
        Column("id", "ID", "ID", lambda row: row.item.id),
        Column("name", "Name", "Name", lambda row: row.item.name),
        Column("zone", "Zone", "Zone", lambda row: row.zone),
        Column("state", "State", "Status", lambda row: str(row.item.state)),
        Column("model_size", "ModelSize", "Size", lambda row: format_size(row.item.model_size)),
    )
)

MODEL: View[Model] = View(
    (
        Column("id", "ID", "ID", lambda model: model.id),
        Column("name", "Name", "Name", lambda model: model.name),
        Column("state", "State", "Status", lambda model: str(model.state)),
        Column("model_size", "ModelSize", "Size", lambda model: format_size(model.model_size)),
        Column("created_at", "CreatedAt", "Created At", lambda m: format_moment(m.created_at)),
        Column("updated_at", "UpdatedAt", "Updated At", lambda m: format_moment(m.updated_at)),
        Column("state_details", "StateDetails", "Status Details", lambda m: m.state_details, True),
        Column("downloaded_bytes", "DownloadedBytes", "", lambda m: m.downloaded_bytes, True),
        Column("revision", "Revision", "Revision", lambda model: model.revision, True),
    )
)

DEPLOYMENT_LIST: View[InZone[Deployment]] = View(
    (
        Column("id", "ID", "ID", lambda row: row.item.id),
        Column("name", "Name", "Name", lambda row: row.item.name),
        Column("zone", "Zone", "Zone", lambda row: row.zone),
        Column("state", "State", "Status", lambda row: str(row.item.state)),
        Column("gpu_type", "GPUType", "GPU Type", lambda row: row.item.gpu_type),
        Column("gpu_count", "GPUCount", "GPU Count", lambda row: row.item.gpu_count or 0),
        Column("replicas", "Replicas", "Replicas", lambda row: row.item.replicas or 0),
        Column("model_name", "ModelName", "Model Name", lambda row: row.item.model.name),
    )
)

DEPLOYMENT: View[Deployment] = View(
    (
        Column("id", "ID", "ID", lambda d: d.id),
        Column("name", "Name", "Name", lambda d: d.name),
        Column("state", "State", "Status", lambda d: str(d.state)),
        Column("state_details", "StateDetails", "Status Details", lambda d: d.state_details),
        Column("gpu_type", "GPUType", "GPU Type", lambda d: d.gpu_type),
        Column("gpu_count", "GPUCount", "GPU Count", lambda d: d.gpu_count or 0),
        Column("replicas", "Replicas", "Replicas", lambda d: d.replicas or 0),
        Column(
            "inference_engine_parameters",
            "InferenceEngineParameters",
            "Inference Engine Parameters",
            lambda d: " ".join(d.inference_engine_parameters or []),
        ),
        Column(
            "inference_engine_version",
            "InferenceEngineVersion",
            "Inference Engine Version",
            lambda d: d.inference_engine_version,
        ),
        Column("service_level", "ServiceLevel", "Service Level", lambda d: d.service_level),
        Column("deployment_url", "DeploymentURL", "Deployment URL", lambda d: d.deployment_url),
        Column("model_id", "ModelID", "Model ID", lambda d: d.model.id),
        Column("model_name", "ModelName", "Model Name", lambda d: d.model.name),
        Column("created_at", "CreatedAt", "Created At", lambda d: format_moment(d.created_at)),
        Column("updated_at", "UpdatedAt", "Updated At", lambda d: format_moment(d.updated_at)),
        Column(
            "inference_engine",
            "InferenceEngine",
            "Inference Engine",
            lambda d: d.inference_engine,
            added=True,
        ),
        Column(
            "ready_replicas",
            "ReadyReplicas",
            "Ready Replicas",
            lambda d: d.ready_replicas,
            added=True,
        ),
        Column(
            "last_in_effect",
            "LastInEffect",
            "",
            lambda d: (
                None if d.last_in_effect is None else d.last_in_effect.model_dump(by_alias=False)
            ),
            added=True,
        ),
        Column(
            "replica_status",
            "ReplicaStatus",
            "",
            lambda d: (
                None
                if d.replica_status is None
                else [replica.to_wire() for replica in d.replica_status]
            ),
            added=True,
        ),
    )
)

API_KEY: View[str] = View(
    (Column("api_key", "APIKey", "API Key", lambda key: key, other_name="Value"),)
)

INSTANCE_TYPE_LIST: View[InZone[InstanceType]] = View(
    (
        Column("family", "Family", "Family", lambda row: row.item.family),
        Column("authorized", "Authorized", "Authorized", lambda row: row.item.authorized),
        Column("zone", "Zone", "Zone", lambda row: row.zone),
        Column("total_gpus", "TotalGPUs", "GPUs", lambda row: row.item.total_gpus, added=True),
        Column("free_gpus", "FreeGPUs", "Free", lambda row: row.item.free_gpus, added=True),
        Column(
            "max_gpu_count",
            "MaxGPUCount",
            "Max per Replica",
            lambda row: row.item.max_gpu_count,
            added=True,
        ),
        Column("engines", "Engines", "", lambda row: row.item.engines, added=True),
        Column("description", "Description", "", lambda row: row.item.description, added=True),
    )
)


def model_rows(model: Model) -> list[tuple[str, str]]:
    """Return the table's rows beyond the fields: how far a download is."""
    if model.downloaded_bytes is None or str(model.state) == "ready":
        return []
    return [("Downloaded", download_progress(model))]


def download_progress(model: Model) -> str:
    """Say how much of a model is there: `1.2 GiB of 15 GiB (8 %)`."""
    done = format_size(model.downloaded_bytes or 0) or "0 B"
    if model.model_size <= 0:
        return done
    percent = min(100, 100 * (model.downloaded_bytes or 0) // model.model_size)
    return f"{done} of {format_size(model.model_size)} ({percent} %)"


def in_effect_rows(deployment: Deployment) -> list[tuple[str, str]]:
    """Return table rows for a deployment of which something else served last than is asked for.

    What became of the change is in its details.
    """
    served = deployment.last_in_effect
    if served is None:
        return []
    flags = shlex.join(served.inference_engine_parameters) or "no flags"
    gpus = f"{served.gpu_count} x {served.gpu_type}"
    what = f"{served.model} on {gpus}, {served.inference_engine}, {flags}"
    return [
        ("Serves Now" if deployment.ready_replicas else "Served Last", what),
        ("Next Step", _next_step(deployment, served)),
    ]


def _next_step(deployment: Deployment, served: InEffect) -> str:
    """Say how to try the change again, or to take it back."""
    verb = f"`exo dedicated-inference deployment {{}} {deployment.name}{{}}`"
    if deployment.replicas == 0:
        return f"try what is asked for now: {verb.format('scale', ' 1')}"
    if str(deployment.state) != "error":
        return f"wait, or follow it: `exo dedicated-inference events {deployment.name} --follow`"
    again = f"mend the cause and try again: {verb.format('update', '')}"
    now = (deployment.model.name, deployment.gpu_type, deployment.gpu_count)
    if now != (served.model, served.gpu_type, served.gpu_count):
        back = "`exo dedicated-inference apply --replace` with the manifest from before"
    else:
        flags = shlex.join(served.inference_engine_parameters)
        given = f" --inference-engine-params {shlex.quote(flags)}"
        given = given if flags else " --clear-inference-engine-params"
        if served.inference_engine != deployment.inference_engine:
            given += f" --inference-engine-version {served.inference_engine.split()[-1]}"
        back = verb.format("update", given)
    return f"{again}; or take it back: {back}"


def replica_rows(deployment: Deployment) -> list[tuple[str, str]]:
    """Return one table row for each replica: where it stands, and why."""
    rows = []
    for replica in deployment.replica_status or []:
        notes = [replica.details] if replica.details else []
        if replica.pid is not None:
            notes.append(f"pid {replica.pid}")
        if replica.restarts:
            notes.append(f"restarts {replica.restarts}")
        rows.append((f"Replica {replica.name}", ", ".join([replica.state, *notes])))
    return rows


def format_moment(moment: datetime | None) -> str:
    """Format as RFC 3339 with whole seconds; the offset stays as it was sent."""
    if moment is None:
        return _NO_TIME
    text = moment.replace(microsecond=0).isoformat()
    return text.removesuffix("+00:00") + "Z" if moment.utcoffset() == timedelta(0) else text


def format_size(size_bytes: int) -> str:
    """Format a size in powers of 1024 with two digits (`15 GiB`, `4.8 MiB`); empty for none.

    The rounding is that of `humanize.IBytes` of the Go package go-humanize.
    """
    if size_bytes <= 0:
        return ""
    if size_bytes < 10:
        return f"{size_bytes} B"
    exponent = 0
    while exponent < 6 and size_bytes >= 1024 ** (exponent + 1):
        exponent += 1
    unit = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")[exponent]
    amount = int(size_bytes / 1024**exponent * 10 + 0.5) / 10
    return f"{amount:.0f} {unit}" if amount >= 10 else f"{amount:.1f} {unit}"


def _or_empty(value: Value | None) -> Value:
    return "" if value is None else value

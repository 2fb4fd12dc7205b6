"""Every call of the API as a value: what is sent and how the answer is read. No I/O.

Both clients build their requests here, so that they cannot differ. A create carries an idempotency
key and may therefore be repeated; a deletion and a read may be repeated by nature.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.sdk._messages import (
    Call,
    M,
    Request,
    Response,
    decode_json,
    encode_json,
    parse,
    reader,
)
from exo_inference.wire import (
    ApiKey,
    ApiKeyList,
    ApiKeyValue,
    ConsumptionQuota,
    CreatedApiKey,
    Deployment,
    DeploymentApiKey,
    DeploymentList,
    DeploymentPlan,
    EngineParameterList,
    EventList,
    InstanceTypeList,
    KeyUsage,
    LogEntry,
    LogList,
    Model,
    ModelList,
    ModelRef,
    Operation,
    PlanStart,
    PlanStartList,
    UsageList,
    Zone,
    ZoneList,
)
from exo_inference.wire.base import format_time

_PATH_SAFE = re.compile(r"[A-Za-z0-9_-]+")

Query = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a change is asked for.

    Attributes:
        dry_run: only have it judged (additive).
        force: admit it although memory refuses it (additive).
        stopped: create it with 0 replicas (additive).
        version: of the deployment that it is based on; it is refused if that is not the present one.
    """

    dry_run: bool = False
    force: bool = False
    version: str | None = None
    stopped: bool = False

    @property
    def query(self) -> Query:
        """The query arguments; a signature covers values alone, so each has its own name as value."""
        given = {"dry-run": self.dry_run, "force": self.force, "stopped": self.stopped}
        return tuple((name, name) for name, is_given in given.items() if is_given)

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The header that refuses a write where somebody else was faster."""
        return () if self.version is None else (("If-Match", f'"{self.version}"'),)


def list_zones() -> Call[list[Zone]]:
    """List the zones: public, and therefore unsigned."""
    action = "listing the zones"
    request = Request(action, "GET", "/zone", signed=False, repeatable=True)
    return Call(request, reader(ZoneList, action)).map(lambda listed: listed.zones)


def list_models() -> Call[list[Model]]:
    """List the models."""
    return _get(ModelList, "/ai/model", "listing the models").map(lambda listed: listed.models)


def get_model(model_id: str) -> Call[Model]:
    """Get one model."""
    return _get(Model, f"/ai/model/{_id(model_id)}", f"reading model {model_id}")


def create_model(
    name: str, *, huggingface_token: str | None, revision: str | None, dry_run: bool
) -> Call[Operation]:
    """Create a model."""
    body = {"name": name, "huggingface-token": huggingface_token, "revision": revision}
    return _create(Operation, "/ai/model", f'creating model "{name}"', body, WriteOptions(dry_run))


def delete_model(model_id: str, *, dry_run: bool) -> Call[Operation]:
    """Delete a model."""
    options = WriteOptions(dry_run)
    return _delete(f"/ai/model/{_id(model_id)}", f"deleting model {model_id}", options)


def list_deployments() -> Call[list[Deployment]]:
    """List the deployments."""
    return _get(DeploymentList, "/ai/deployment", "listing the deployments").map(
        lambda listed: listed.deployments
    )


def get_deployment(deployment_id: str) -> Call[Deployment]:
    """Get one deployment, with its state details, parameters and version."""
    return _get(Deployment, _deployment_path(deployment_id), f"reading deployment {deployment_id}")


def create_deployment(name: str, fields: dict[str, Any], options: WriteOptions) -> Call[Operation]:
    """Create a deployment; `fields` are the other fields of the body, by their wire names."""
    body = {"name": name, **fields}
    action = f'creating deployment "{name}"'
    return _create(Operation, "/ai/deployment", action, body, options)


def update_deployment(
    deployment_id: str, fields: dict[str, Any], options: WriteOptions
) -> Call[Operation]:
    """Change some fields of a deployment; those that are None stay as they are."""
    action = f"updating deployment {deployment_id}"
    return _change(action, "PATCH", _deployment_path(deployment_id), options, _given(fields))


def replace_deployment(
    deployment_id: str, fields: dict[str, Any], options: WriteOptions
) -> Call[Operation]:
    """Let another specification take a deployment's place."""
    action = f"replacing deployment {deployment_id}"
    return _change(action, "PUT", _deployment_path(deployment_id), options, _given(fields))


def plan_deployment(fields: dict[str, Any]) -> Call[DeploymentPlan]:
    """Plan a deployment; nothing is created, so it may be repeated."""
    action = "planning a deployment"
    body = encode_json(_given(fields))
    request = Request(action, "POST", "/ai/plan", body=body, repeatable=True)
    return Call(request, reader(DeploymentPlan, action))


def list_plan_starts() -> Call[list[PlanStart]]:
    """List the real starts."""
    return _get(PlanStartList, "/ai/plan/starts", "listing the starts").map(
        lambda listed: listed.starts
    )


def scale_deployment(deployment_id: str, replicas: int, options: WriteOptions) -> Call[Operation]:
    """Set the number of replicas."""
    action = f"scaling deployment {deployment_id} to {replicas}"
    path = f"{_deployment_path(deployment_id)}/scale"
    return _change(action, "POST", path, options, {"replicas": replicas})


def restart_deployment(deployment_id: str, options: WriteOptions) -> Call[Operation]:
    """Ask for new replicas in place of all that run (additive)."""
    action = f"restarting deployment {deployment_id}"
    return _change(action, "POST", f"{_deployment_path(deployment_id)}/restart", options)


def delete_deployment(deployment_id: str, options: WriteOptions) -> Call[Operation]:
    """Delete a deployment."""
    action = f"deleting deployment {deployment_id}"
    return _delete(_deployment_path(deployment_id), action, options)


def reveal_api_key(deployment_id: str) -> Call[DeploymentApiKey]:
    """Reveal the inference key of a deployment."""
    action = f"revealing the API key of deployment {deployment_id}"
    return _get(DeploymentApiKey, f"{_deployment_path(deployment_id)}/api-key", action)


def deployment_logs(deployment_id: str, query: Query) -> Call[list[LogEntry]]:
    """Get log lines as one answer."""
    action = f"reading the logs of deployment {deployment_id}"
    path = f"{_deployment_path(deployment_id)}/logs"
    return _get(LogList, path, action, query).map(lambda listed: listed.logs)


def log_query(
    *,
    tail: int | None,
    since: datetime | None,
    previous: bool,
    replica: str | None,
    follow: bool = False,
) -> Query:
    """Return the arguments of a log request, without those that were not given."""
    if since is not None and since.tzinfo is None:
        raise UsageError(
            f"since={since.isoformat()} has no time zone", hint="Use datetime.now(UTC) or similar."
        )
    given = {
        "tail": None if tail is None else str(tail),
        "since": None if since is None else format_time(since),
        "previous": "true" if previous else None,
        "replica": replica,
        "follow": "true" if follow else None,
    }
    return tuple((name, value) for name, value in given.items() if value is not None)


def read_log_line(line: str, action: str) -> list[LogEntry] | None:
    """Read one line of a followed log.

    Returns:
        Its entries: none for a blank line, one for a log line; None when the server does not know
        `follow` and answered with a whole list, which `read_log_list` reads.
    """
    if not line.strip():
        return []
    value = decode_json(line.encode(), action)
    if isinstance(value, dict) and "logs" in value and "message" not in value:
        return None
    return [parse(LogEntry, value, action)]


def read_log_list(line: str, action: str) -> list[LogEntry]:
    """Read the answer of a server that does not know `follow`."""
    return parse(LogList, decode_json(line.encode(), action), action).logs


def list_events(kind: str, object_id: str) -> Call[EventList]:
    """List the events of a `model` or a `deployment`."""
    path = f"/ai/{kind}/{_id(object_id)}/events"
    return _get(EventList, path, f"reading the events of {kind} {object_id}")


def list_instance_types() -> Call[InstanceTypeList]:
    """List the GPU families."""
    return _get(InstanceTypeList, "/ai/instance-type", "listing the instance types")


def list_parameters(
    version: str | None, *, engine: str | None = None, gpu_type: str | None = None
) -> Call[EngineParameterList]:
    """List the parameters of an engine, or of what runs on a GPU family."""
    given = (("version", version), ("engine", engine), ("gpu-type", gpu_type))
    query = tuple((name, value) for name, value in given if value)
    path = "/ai/help/inference-engine-parameters"
    return _get(EngineParameterList, path, "listing the inference engine parameters", query)


def create_api_key(name: str, scope: str) -> Call[CreatedApiKey]:
    """Create an inference key."""
    body = {"name": name, "scope": scope}
    return _create(CreatedApiKey, "/ai/api-key", f'creating API key "{name}"', body, WriteOptions())


def list_api_keys() -> Call[list[ApiKey]]:
    """List the inference keys, without their values."""
    return _get(ApiKeyList, "/ai/api-key", "listing the API keys").map(
        lambda listed: listed.ai_api_keys
    )


def get_api_key(key_id: str) -> Call[ApiKey]:
    """Get one inference key, without its value."""
    return _get(ApiKey, f"/ai/api-key/{_id(key_id)}", f"reading API key {key_id}")


def delete_api_key(key_id: str) -> Call[Operation]:
    """Delete an inference key."""
    return _delete(f"/ai/api-key/{_id(key_id)}", f"deleting API key {key_id}", WriteOptions())


def update_api_key(key_id: str, fields: dict[str, Any]) -> Call[ApiKey]:
    """Change name or scope of an inference key."""
    action = f"updating API key {key_id}"
    body = encode_json(_given(fields))
    path = f"/ai/api-key/{_id(key_id)}"
    return Call(Request(action, "PATCH", path, body=body), reader(ApiKey, action))


def reveal_scoped_key(key_id: str) -> Call[ApiKeyValue]:
    """Show the value of an inference key again."""
    path = f"/ai/api-key/{_id(key_id)}/reveal"
    return _get(ApiKeyValue, path, f"revealing API key {key_id}")


def rotate_api_key(key_id: str) -> Call[ApiKeyValue]:
    """Give an inference key a new value."""
    action = f"rotating API key {key_id}"
    path = f"/ai/api-key/{_id(key_id)}/rotate"
    return Call(Request(action, "POST", path), reader(ApiKeyValue, action))


def get_operation(operation_id: str) -> Call[Operation]:
    """Get one operation."""
    return _get(Operation, f"/operation/{_id(operation_id)}", f"reading operation {operation_id}")


def get_quota() -> Call[ConsumptionQuota]:
    """Get the consumption quota of the organisation."""
    return _get(ConsumptionQuota, "/ai/quota", "reading the quota")


def list_usage() -> Call[list[KeyUsage]]:
    """List what keys have used of deployments (additive)."""
    return _get(UsageList, "/ai/usage", "reading the usage").map(lambda listed: listed.usage)


def get_metrics() -> Call[str]:
    """Get the metrics of a control plane of one machine as text (additive)."""
    request = Request("reading the metrics", "GET", "/ai/metrics", repeatable=True)
    return Call(request, lambda answer: answer.body.decode("utf-8", "replace"))


def get_status() -> Call[dict[str, Any]]:
    """Get the versions and processes of the control plane (additive)."""
    action = "reading the status of the control plane"
    request = Request(action, "GET", "/ai/status", repeatable=True)

    def read(response: Response) -> dict[str, Any]:
        value = decode_json(response.body, action)
        return value if isinstance(value, dict) else {}

    return Call(request, read)


def model_ref(model: str | ModelRef) -> dict[str, str]:
    """Return the wire form of a model given by name, id or reference."""
    if isinstance(model, str):
        model = ModelRef.parse(model)
    fields: dict[str, str] = model.to_wire()
    if not fields:
        raise UsageError("a deployment needs the name or the id of a model")
    return fields


def parameter_list(parameters: Sequence[str]) -> list[str]:
    """Return engine parameters as a list; one string is a mistake, because it would be split."""
    if isinstance(parameters, str):
        raise UsageError(
            "engine_parameters must be a list of flags, not one string",
            hint="Split it with shlex.split first.",
        )
    return list(parameters)


def _get(model: type[M], path: str, action: str, query: Query = ()) -> Call[M]:
    return Call(Request(action, "GET", path, query, repeatable=True), reader(model, action))


def _create(
    model: type[M],
    path: str,
    action: str,
    body: dict[str, Any],
    options: WriteOptions,
) -> Call[M]:
    key = ("Idempotency-Key", str(uuid.uuid4()))
    encoded = encode_json(_given(body))
    request = Request(action, "POST", path, options.query, encoded, (key,), repeatable=True)
    return Call(request, reader(model, action))


def _change(
    action: str,
    method: str,
    path: str,
    options: WriteOptions,
    body: dict[str, Any] | None = None,
) -> Call[Operation]:
    encoded = None if body is None else encode_json(body)
    return _operation(Request(action, method, path, options.query, encoded, options.headers))


def _delete(path: str, action: str, options: WriteOptions) -> Call[Operation]:
    return _operation(
        Request(action, "DELETE", path, options.query, headers=options.headers, repeatable=True)
    )


def _operation(request: Request) -> Call[Operation]:
    return Call(request, reader(Operation, request.action))


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _deployment_path(deployment_id: str) -> str:
    return f"/ai/deployment/{_id(deployment_id)}"


def _id(value: str) -> str:
    """Return an id that is safe in a path; a name there is a mistake that is worth its own error."""
    if not _PATH_SAFE.fullmatch(value):
        raise UsageError(
            f"expected an id, found {json.dumps(value, ensure_ascii=False)}",
            hint="Look the object up by its name first: .find(name).id",
        )
    return value

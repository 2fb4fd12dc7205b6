"""The HTTP API as types: what clients send and what the controller answers, byte for byte.

Field names on the wire are kebab-case (`gpu-count`); in Python they are snake_case. Imports nothing
of ours, so that both sides may import it. Source of every shape: the Exoscale v2 openapi document
(`exoscale` 0.16.4 on PyPI). What we add is optional and marked "additive".
"""

from exo_inference.wire.base import WireModel
from exo_inference.wire.deployments import (
    CREATES_STOPPED,
    REPLACES,
    CreateDeployment,
    Deployment,
    DeploymentApiKey,
    DeploymentList,
    DeploymentState,
    InEffect,
    LastChange,
    ModelRef,
    ReplicaView,
    ScaleDeployment,
    UpdateDeployment,
)
from exo_inference.wire.errors import SIGNATURE_PROBLEM, FieldProblem, Problem
from exo_inference.wire.events import Event, EventList
from exo_inference.wire.help import EngineParameter, EngineParameterList
from exo_inference.wire.instance_types import InstanceType, InstanceTypeList
from exo_inference.wire.keys import (
    ApiKey,
    ApiKeyList,
    ApiKeyValue,
    CreateApiKey,
    CreatedApiKey,
    UpdateApiKey,
)
from exo_inference.wire.logs import LogEntry, LogList
from exo_inference.wire.models import CreateModel, Model, ModelList, ModelState
from exo_inference.wire.operations import Operation, OperationReason, OperationState, Reference
from exo_inference.wire.plan_starts import (
    PlanStart,
    PlanStartList,
    StartMeasurements,
    StartPrediction,
)
from exo_inference.wire.plans import (
    MEMORY_CODES,
    BatchSpeed,
    DeploymentPlan,
    PlanAdvice,
    PlanComponent,
    PlanImprovement,
    PlanProblem,
    PlanRequest,
    PlanSpeed,
    PlanStage,
    PlanVerdict,
    PromptSpeed,
)
from exo_inference.wire.quota import ConsumptionQuota, Quota, QuotaList
from exo_inference.wire.routes import Route, RouteKey, RouteReplica, RouteTable
from exo_inference.wire.usage import KeyUsage, UsageList
from exo_inference.wire.zones import Zone, ZoneList

__all__ = [
    "CREATES_STOPPED",
    "MEMORY_CODES",
    "REPLACES",
    "SIGNATURE_PROBLEM",
    "ApiKey",
    "ApiKeyList",
    "ApiKeyValue",
    "BatchSpeed",
    "ConsumptionQuota",
    "CreateApiKey",
    "CreateDeployment",
    "CreateModel",
    "CreatedApiKey",
    "Deployment",
    "DeploymentApiKey",
    "DeploymentList",
    "DeploymentPlan",
    "DeploymentState",
    "EngineParameter",
    "EngineParameterList",
    "Event",
    "EventList",
    "FieldProblem",
    "InEffect",
    "InstanceType",
    "InstanceTypeList",
    "KeyUsage",
    "LastChange",
    "LogEntry",
    "LogList",
    "Model",
    "ModelList",
    "ModelRef",
    "ModelState",
    "Operation",
    "OperationReason",
    "OperationState",
    "PlanAdvice",
    "PlanComponent",
    "PlanImprovement",
    "PlanProblem",
    "PlanRequest",
    "PlanSpeed",
    "PlanStage",
    "PlanStart",
    "PlanStartList",
    "PlanVerdict",
    "Problem",
    "PromptSpeed",
    "Quota",
    "QuotaList",
    "Reference",
    "ReplicaView",
    "Route",
    "RouteKey",
    "RouteReplica",
    "RouteTable",
    "ScaleDeployment",
    "StartMeasurements",
    "StartPrediction",
    "UpdateApiKey",
    "UpdateDeployment",
    "UsageList",
    "WireModel",
    "Zone",
    "ZoneList",
]

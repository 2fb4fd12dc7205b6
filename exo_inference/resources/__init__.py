"""The object model: desired state and status, in Kubernetes form, in YAML and in the store.

One definition serves the SQLite store, the YAML of `apply`, and the CRD schemas.
"""

from exo_inference.resources.api_key import (
    PUBLIC_SCOPE,
    ApiKeySpec,
    ApiKeyStatus,
    InferenceApiKey,
    api_key_object_name,
)
from exo_inference.resources.base import (
    API_GROUP,
    API_VERSION,
    Condition,
    ConditionStatus,
    ObjectMeta,
    Resource,
    find_condition,
    is_true,
)
from exo_inference.resources.deployment import (
    ADMITTED_ANNOTATION,
    DEPLOYMENT_FINALIZER,
    MAX_REPLICAS,
    RESTART_ANNOTATION,
    DeploymentSpec,
    DeploymentStatus,
    EngineRef,
    InferenceDeployment,
    ReplicaState,
)
from exo_inference.resources.model import (
    MODEL_FINALIZER,
    InferenceModel,
    ModelSpec,
    ModelStatus,
    TokenSecretRef,
    find_older_model,
    model_object_name,
)
from exo_inference.resources.operation import (
    IdempotentRequest,
    InferenceOperation,
    OperationResult,
    OperationSpec,
    OperationStatus,
    OperationSubject,
)

__all__ = [
    "ADMITTED_ANNOTATION",
    "API_GROUP",
    "API_VERSION",
    "DEPLOYMENT_FINALIZER",
    "MAX_REPLICAS",
    "MODEL_FINALIZER",
    "PUBLIC_SCOPE",
    "RESTART_ANNOTATION",
    "ApiKeySpec",
    "ApiKeyStatus",
    "Condition",
    "ConditionStatus",
    "DeploymentSpec",
    "DeploymentStatus",
    "EngineRef",
    "IdempotentRequest",
    "InferenceApiKey",
    "InferenceDeployment",
    "InferenceModel",
    "InferenceOperation",
    "ModelSpec",
    "ModelStatus",
    "ObjectMeta",
    "OperationResult",
    "OperationSpec",
    "OperationStatus",
    "OperationSubject",
    "ReplicaState",
    "Resource",
    "TokenSecretRef",
    "api_key_object_name",
    "find_condition",
    "find_older_model",
    "is_true",
    "model_object_name",
]

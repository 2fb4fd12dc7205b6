"""Derives the schemas that the chart tests validate rendered objects against.

Sources: `api/openapi-spec/v3` of the Go modules k8s.io/kubernetes, and the published
CustomResourceDefinitions of the Go modules of Gateway API, KEDA and the Prometheus Operator, and, for
the tests of `examples/`, of Argo CD and Flux. LeaderWorkerSet's module is not served by the Go proxy, so
its CRD is read from a clone.
Kept are only the kinds that the charts render and what they refer to, without descriptions, and with
unknown fields refused wherever the API server would drop or refuse them.

    git clone https://github.com/kubernetes-sigs/lws /tmp/lws
    python -m scripts.build_kubernetes_schemas --lws /tmp/lws      # writes tests/charts/schemas/
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "tests" / "charts" / "schemas"

KUBERNETES = {"1.36": "k8s.io/kubernetes@v1.36.3", "1.35": "k8s.io/kubernetes@v1.35.4"}
"""The two newest minor versions, each by the newest patch that the Go proxy serves."""

KINDS = {
    "api__v1": ("ConfigMap", "PersistentVolumeClaim", "Pod", "Service", "ServiceAccount"),
    "apis__admissionregistration.k8s.io__v1": (
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ),
    "apis__apiextensions.k8s.io__v1": ("CustomResourceDefinition",),
    "apis__apps__v1": ("Deployment",),
    "apis__autoscaling__v2": ("HorizontalPodAutoscaler",),
    "apis__batch__v1": ("Job",),
    "apis__networking.k8s.io__v1": ("Ingress", "NetworkPolicy"),
    "apis__policy__v1": ("PodDisruptionBudget",),
    "apis__rbac.authorization.k8s.io__v1": (
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
    ),
    "apis__resource.k8s.io__v1": ("ResourceClaimTemplate",),
}

MODULE_CRDS = (
    (
        "sigs.k8s.io/gateway-api@v1.6.3",
        "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
    ),
    ("github.com/kedacore/keda/v2@v2.21.0", "config/crd/bases/keda.sh_scaledobjects.yaml"),
    (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
    (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
)
GITOPS_CRDS = (
    ("github.com/argoproj/argo-cd/v3@v3.5.1", "manifests/crds/application-crd.yaml"),
    (
        "github.com/fluxcd/source-controller@v1.9.1",
        "config/crd/bases/source.toolkit.fluxcd.io_gitrepositories.yaml",
    ),
    (
        "github.com/fluxcd/kustomize-controller@v1.9.4",
        "config/crd/bases/kustomize.toolkit.fluxcd.io_kustomizations.yaml",
    ),
    (
        "github.com/fluxcd/helm-controller@v1.6.3",
        "config/crd/bases/helm.toolkit.fluxcd.io_helmreleases.yaml",
    ),
)
LWS_TAG = "v0.9.0"
LWS_CRD = "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"

POD_TEMPLATE = "#/definitions/io.k8s.api.core.v1.PodTemplateSpec"
"""Stands for the pod templates in LeaderWorkerSet's CRD, which repeat the whole Pod inline."""

_KEPT = {
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "exclusiveMinimum",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "not",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "type",
}
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def main() -> int:
    """Write one file per minor version and one for the custom kinds."""
    parser = argparse.ArgumentParser(description="Derive tests/charts/schemas.")
    parser.add_argument("--lws", type=Path, required=True, help="clone of kubernetes-sigs/lws")
    options = parser.parse_args()
    TARGET.mkdir(parents=True, exist_ok=True)
    for minor, module in KUBERNETES.items():
        _write(f"kubernetes-{minor}.json", module, derive_kubernetes(_module(module)))
    definitions: dict[str, Any] = {}
    for module, path in MODULE_CRDS:
        definitions |= derive_crd((_module(module) / path).read_text("utf-8"))
    command = ["git", "-C", str(options.lws), "show", f"{LWS_TAG}:{LWS_CRD}"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    definitions |= derive_crd(shown.stdout)
    sources = sorted({module for module, _ in MODULE_CRDS})
    _write("custom.json", f"{', '.join(sources)}, kubernetes-sigs/lws@{LWS_TAG}", definitions)
    _write("gitops.json", ", ".join(module for module, _ in GITOPS_CRDS), derive_gitops())
    return 0


def derive_gitops() -> dict[str, Any]:
    """Return `apiVersion/Kind` of the kinds of Argo CD and Flux, without what only they write."""
    found: dict[str, Any] = {}
    for module, path in GITOPS_CRDS:
        found |= derive_crd((_module(module) / path).read_text("utf-8"))
    for schema in found.values():
        fields = schema["properties"]
        schema["properties"] = {
            key: fields[key] for key in ("apiVersion", "kind", "metadata", "spec")
        }
    return found


def derive_kubernetes(module: Path) -> dict[str, Any]:
    """Return `apiVersion/Kind` and every definition that is needed, by name."""
    found: dict[str, Any] = {}
    for group, kinds in KINDS.items():
        text = (module / "api/openapi-spec/v3" / f"{group}_openapi.json").read_text("utf-8")
        schemas = json.loads(text)["components"]["schemas"]
        for name, schema in schemas.items():
            for entry in schema.get("x-kubernetes-group-version-kind", ()):
                version = "/".join(filter(None, (entry["group"], entry["version"])))
                if entry["kind"] in kinds and f"{version.replace('/', '__')}" in group:
                    found[f"{version}/{entry['kind']}"] = {"$ref": f"#/definitions/{name}"}
                    _collect(name, schemas, found)
    return found


def derive_crd(text: str) -> dict[str, Any]:
    """Return `apiVersion/Kind` of every served version of a CustomResourceDefinition."""
    crd = yaml.safe_load(text)
    found = {}
    for version in crd["spec"]["versions"]:
        schema = shrink(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"$ref": f"#/definitions/{_META}"}
        found[f"{crd['spec']['group']}/{version['name']}/{crd['spec']['names']['kind']}"] = schema
    return found


def shrink(schema: Any) -> Any:
    """Return what validates, nothing that only explains, and refuse unknown fields."""
    if "$ref" in schema:
        return {"$ref": schema["$ref"].replace("#/components/schemas/", "#/definitions/")}
    if len(schema.get("allOf", ())) == 1 and "$ref" in schema["allOf"][0]:
        return shrink(schema["allOf"][0])
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        return {"type": ["integer", "string"]}
    if {"metadata", "spec"} <= set(schema.get("properties", {})) and "containers" in (
        schema["properties"]["spec"].get("properties", {})
    ):
        return {"$ref": POD_TEMPLATE}
    kept = {key: _shrink_value(key, schema[key]) for key in _KEPT & schema.keys()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in kept and "additionalProperties" not in kept and not is_open:
        kept["additionalProperties"] = False
    return kept


def _shrink_value(key: str, value: Any) -> Any:
    if key == "properties":
        return {name: shrink(child) for name, child in value.items()}
    if key in ("allOf", "anyOf", "oneOf"):
        # Their branches speak of some fields only; they must not refuse the others.
        return [_open(shrink(child)) for child in value]
    if key in ("items", "additionalProperties", "not") and isinstance(value, dict):
        return shrink(value)
    return value


def _open(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "additionalProperties"}


def _collect(name: str, schemas: dict[str, Any], found: dict[str, Any]) -> None:
    if name in found:
        return
    found[name] = schema = shrink(schemas[name])
    for reference in references(schema):
        _collect(reference, schemas, found)


def references(schema: Any) -> set[str]:
    """Return the names of all definitions that a schema refers to."""
    if isinstance(schema, list):
        return set().union(*map(references, schema))
    if not isinstance(schema, dict):
        return set()
    found = set().union(*map(references, schema.values()))
    if isinstance(schema.get("$ref"), str):
        found.add(schema["$ref"].removeprefix("#/definitions/"))
    return found


def _module(module: str) -> Path:
    command = ["go", "mod", "download", "-json", module]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return Path(json.loads(result.stdout)["Dir"])


def _write(name: str, source: str, definitions: dict[str, Any]) -> None:
    """One definition per line, so that a change of version reads as a change of kinds."""
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, sort_keys=True, separators=(',', ':'))}"
        for key, value in sorted(definitions.items())
    ]
    head = f'{{"source": {json.dumps(source)},\n"definitions": {{\n'
    (TARGET / name).write_text(head + ",\n".join(lines) + "\n}}\n", "utf-8")
    print(f"{name}: {len(definitions)} definitions from {source}")


if __name__ == "__main__":
    sys.exit(main())

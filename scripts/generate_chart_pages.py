"""Fills in what the charts repeat: Kubernetes types in their schemas, and the page of all values.

`values.schema.json` is written by hand but for its definitions named `io.k8s.…`, which are taken from
tests/charts/schemas, so that a toleration or an affinity with a typing error is refused as well; and
but for those of one chart's values within another's.
`docs/reference/charts.md` comes from the comments of the `values.yaml` files.

    python -m scripts.generate_chart_pages            # write
    python -m scripts.generate_chart_pages --check    # fail if anything would change
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scripts.build_kubernetes_schemas import references

ROOT = Path(__file__).parents[1]
CHARTS = ("exo-inference", "inference-model", "inference-deployment")
KUBERNETES = ROOT / "tests" / "charts" / "schemas" / "kubernetes-1.36.json"
PAGE = ROOT / "docs" / "reference" / "charts.md"

EMBEDDED = {"inference-deployment": "deploymentValues", "inference-model": "modelValues"}
"""Charts whose values are part of another's (`platform.…` of exo-inference), and under which name."""

_SHAPE = ("type", "additionalProperties")
_KEY = re.compile(r"( *)([A-Za-z][\w-]*):(?: (.*))?$")
_INTRODUCTION = """\
# Charts

Three Helm charts, in `charts/`. `exo-inference` is the control plane and the one that people install;
its controller installs a release of `inference-model` per model and of `inference-deployment` per
deployment. An unknown value is refused by all three. This page is made from the comments of their
`values.yaml` by `scripts/generate_chart_pages.py`; what the control plane may do on the cluster is in
[RBAC](rbac.md).

## The download Job

The Job of `inference-model` prints one JSON object a line:

| `state` | with | when |
| --- | --- | --- |
| `resolved` | `revision`, `size_bytes` | the model was found and access to it tried |
| `downloading` | `downloaded_bytes` as well | every `download.progressSeconds` |
| `downloaded` | `checksum` as well | all files are there and checked |

The last line, or one that begins with `exo-download: error:`, is also the container's termination
message, so that it stays in the pod's status. Exit code 78 means that another try would not help (no
such model, a licence not accepted, another checksum) and ends the Job; 75 that it may.
"""


@dataclass(frozen=True, slots=True)
class Value:
    """One key of a values.yaml: its dotted path, its comment, and its default if it is a leaf."""

    path: str
    comment: str
    default: str | None


def main() -> int:
    """Write or check every generated file."""
    parser = argparse.ArgumentParser(description="Generate chart schemas and docs/reference.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    options = parser.parse_args()
    files = {PAGE: render_page(), **fill_schemas()}
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if options.check:
            print(f"{path.relative_to(ROOT)} is out of date: run `make docs`", file=sys.stderr)
        else:
            path.write_text(files[path], "utf-8")
    return int(options.check and bool(stale))


def fill_schemas() -> dict[Path, str]:
    """Return every values.schema.json with the definitions that it refers to, and no others."""
    known = json.loads(KUBERNETES.read_text("utf-8"))["definitions"]
    files = {}
    for chart in (*EMBEDDED, "exo-inference"):
        path = ROOT / "charts" / chart / "values.schema.json"
        schema = json.loads(path.read_text("utf-8"))
        files[path] = _fill(schema, known)
        if name := EMBEDDED.get(chart):
            own = {k: v for k, v in schema["properties"].items() if k != "global"}
            known[name] = {key: schema[key] for key in _SHAPE} | {"properties": own}
            known |= _own(schema, known)
    return files


def _fill(schema: dict[str, Any], known: dict[str, Any]) -> str:
    own = _own(schema, known)
    schema["definitions"] = own
    found: dict[str, Any] = {}
    wanted = references(schema)
    while missing := sorted(wanted - found.keys() - own.keys()):
        found |= {name: known[name] for name in missing}
        wanted |= references(found)
    schema["definitions"] = own | dict(sorted(found.items()))
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _own(schema: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """What is written by hand in this schema."""
    definitions = schema["definitions"].items()
    return {
        name: value
        for name, value in definitions
        if name not in known and not name.startswith("io.k8s.")
    }


def render_page() -> str:
    """Return docs/reference/charts.md."""
    parts = [_INTRODUCTION]
    for chart in CHARTS:
        folder = ROOT / "charts" / chart
        description = yaml.safe_load((folder / "Chart.yaml").read_text("utf-8"))["description"]
        rows = [_row(value) for value in read_values((folder / "values.yaml").read_text("utf-8"))]
        head = "| value | default | meaning |\n| --- | --- | --- |"
        parts.append("\n".join([f"## {chart}\n\n{description}\n\n{head}", *rows]) + "\n")
    return "\n".join(parts)


def read_values(text: str) -> list[Value]:
    """Return every key of a values.yaml in its order, with the comment above it."""
    values: list[Value] = []
    parents: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip().lstrip("#").strip())
        elif match := _KEY.fullmatch(line):
            indent, key, default = len(match[1]), match[2], match[3]
            parents = [(depth, name) for depth, name in parents if depth < indent]
            path = ".".join([*(name for _, name in parents), key])
            parents.append((indent, key))
            values.append(Value(path, " ".join(comment), default))
            comment = []
        elif not line.strip():
            comment = []
        else:
            raise SystemExit(f"values.yaml: cannot read {line!r}: write lists and maps on one line")
    return values


def _row(value: Value) -> str:
    default = "" if value.default is None else f" `{value.default}`"
    return f"| `{value.path}` |{default} | {value.comment} |"


if __name__ == "__main__":
    sys.exit(main())

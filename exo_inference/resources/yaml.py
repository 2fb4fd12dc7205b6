"""Resources in YAML: one or more documents in, documents that can be applied again out.

`manifest_files.py` reads files through it, `export` writes with it. Every problem is reported, each
with file and line. What only a server sets (`status`, uid, generation, …) may stand in a file,
as `kubectl get -o yaml` writes it, and is ignored. Whether a server admits an object is not
decided here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from exo_inference.errors import UsageError
from exo_inference.resources.base import API_VERSION
from exo_inference.resources.deployment import MAX_REPLICAS, InferenceDeployment
from exo_inference.resources.model import InferenceModel

Applicable = InferenceModel | InferenceDeployment

KINDS: dict[str, type[InferenceModel] | type[InferenceDeployment]] = {
    InferenceModel.KIND: InferenceModel,
    InferenceDeployment.KIND: InferenceDeployment,
}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OF_THE_SERVER = frozenset(
    {
        "creationTimestamp",
        "deletionTimestamp",
        "finalizers",
        "generation",
        "managedFields",
        "namespace",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
        "updateTimestamp",
    }
)
_WORDS = {
    "string_type": "must be text; put it in quotes",
    "missing": "is missing",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
}

_COUNTS = {
    ("spec", "gpuCount"): "must be a whole number from 1",
    ("spec", "replicas"): f"must be a whole number from 0 to {MAX_REPLICAS}",
}
"""What the fields that count must be, whichever way their values are wrong."""

_MAX_DEPTH = 64
_MAX_VALUES = 100_000
_MAX_DIGITS = 64
_MAX_MESSAGE = 1000
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})

FieldPath = tuple[str | int, ...]


@dataclass(frozen=True, order=True)
class ManifestProblem:
    """One thing that is wrong, and where."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


class ManifestError(UsageError):
    """The files cannot be applied as they are; `problems` has all the reasons."""

    def __init__(self, problems: Sequence[ManifestProblem]) -> None:
        self.problems = tuple(sorted(problems))
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{count} in the manifests; nothing was changed{lines}")


@dataclass(frozen=True)
class Manifest:
    """One object of a file, and where it begins there."""

    resource: Applicable
    file: str
    line: int

    @property
    def spec(self) -> dict[str, Any]:
        """What the file says, and nothing that it leaves open; keys as in the file."""
        spec = self.resource.spec
        dumped: dict[str, Any] = spec.model_dump(
            mode="json", by_alias=True, exclude_unset=True, exclude_none=True
        )
        return dumped

    def problem(self, message: str) -> ManifestProblem:
        """Return a problem with this object."""
        return ManifestProblem(self.file, self.line, message)


def parse_manifests(text: str, file: str) -> tuple[list[Manifest], list[ManifestProblem]]:
    """Read the documents of one file.

    Args:
        text: the YAML.
        file: its name, for the problems.

    Returns:
        The objects that are right, and the problems of the others.
    """
    manifests: list[Manifest] = []
    problems: list[ManifestProblem] = []
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        return [], [ManifestProblem(file, line, f"is not YAML: {str(exc).splitlines()[0]}")]
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None, "check_node said that there is one"
            if problem := _find_excess(node, file):
                problems.append(problem)
                continue
            document = _Document(node, file)
            value = loader.construct_document(document.node)
            if value is not None:
                manifest = _read_document(document, value)
                manifests += [manifest] if manifest else []
                problems += document.problems
    except yaml.YAMLError as exc:
        problems.append(_syntax_problem(exc, file))
    except (RecursionError, ValueError, TypeError, AttributeError, LookupError) as exc:
        # The last three are the library's own, on tags whose values are not of their form.
        text = _printable(f"cannot be read: {exc}")
        problems.append(ManifestProblem(file, loader.line + 1, text))
    finally:
        loader.dispose()
    return manifests, problems


def dump_manifest(kind: str, name: str, spec: Mapping[str, Any]) -> str:
    """Return one document of YAML, as people would write it."""
    document = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name},
        "spec": dict(spec),
    }
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    return text


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping: YAML would keep the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value != "<<" and isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {key.value!r} stands here twice",
                        problem_mark=key.start_mark,
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Return the text of a scalar; one that is no text is short, or it would take hours."""
        if node.tag in _NUMBERS and len(node.value) > _MAX_DIGITS:
            raise yaml.constructor.ConstructorError(
                problem=f"a number of {len(node.value)} characters stands here",
                problem_mark=node.start_mark,
            )
        return super().construct_scalar(node)


def _find_excess(root: yaml.Node, file: str) -> ManifestProblem | None:
    """Return what is beyond all manifests: nesting, or aliases that make one value of millions."""
    sizes: dict[int, int] = {}

    def measure(node: yaml.Node, depth: int) -> int:
        if depth > _MAX_DEPTH:  # an alias inside its own anchor ends here, too
            raise _Excess(node, f"is nested deeper than {_MAX_DEPTH} levels")
        if not isinstance(node, yaml.CollectionNode):
            return 1
        if id(node) not in sizes:
            parts = node.value
            if isinstance(node, yaml.MappingNode):
                parts = [each for pair in node.value for each in pair]
            sizes[id(node)] = 1 + sum(measure(each, depth + 1) for each in parts)
        if sizes[id(node)] > _MAX_VALUES:
            raise _Excess(node, f"comes to more than {_MAX_VALUES} values with its aliases")
        return sizes[id(node)]

    try:
        measure(root, 0)
    except _Excess as excess:
        return ManifestProblem(file, excess.line, str(excess))
    return None


class _Excess(Exception):
    def __init__(self, node: yaml.Node, message: str) -> None:
        super().__init__(message)
        self.line = int(node.start_mark.line) + 1


class _Document:
    """One document while it is read: its nodes, for the lines, and its problems."""

    def __init__(self, node: yaml.Node, file: str) -> None:
        self.node = node
        self.file = file
        self.problems: list[ManifestProblem] = []

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    def report(self, path: FieldPath, message: str) -> None:
        """Add a problem with the value at a path, or with the nearest part above that exists."""
        where = ".".join(str(part) for part in path)
        text = f"{where} {message}" if where else message
        self.problems.append(ManifestProblem(self.file, self._line_of(path), _printable(text)))

    def _line_of(self, path: FieldPath) -> int:
        node, line = self.node, self.line
        for part in path:
            if isinstance(node, yaml.MappingNode):
                pair = next((p for p in node.value if p[0].value == part), None)
                if pair is None:
                    break
                line, node = int(pair[0].start_mark.line) + 1, pair[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                node = node.value[part]
                line = int(node.start_mark.line) + 1
        return line


def _read_document(document: _Document, value: Any) -> Manifest | None:
    if not isinstance(value, dict):
        document.report((), "must be a mapping with apiVersion, kind, metadata and spec")
        return None
    if value.get("apiVersion") != API_VERSION:
        found = value.get("apiVersion")
        document.report(("apiVersion",), f"must be {API_VERSION}, found {_short(found)}")
    kind = KINDS.get(str(value.get("kind")))
    if kind is None:
        document.report(
            ("kind",), f"must be {' or '.join(KINDS)}, found {_short(value.get('kind'))}"
        )
        return None
    fields = {key: part for key, part in value.items() if key not in ("status", "apiVersion")}
    if isinstance(metadata := fields.get("metadata"), dict):
        fields["metadata"] = {k: v for k, v in metadata.items() if k not in _OF_THE_SERVER}
    fields = _known_fields(document, kind, fields, ())
    _check_name(document, kind, fields)
    resource = _validate(document, kind, fields)
    if resource is None or document.problems:
        return None
    return Manifest(resource, document.file, document.line)


def _known_fields(
    document: _Document, model: type[BaseModel], value: dict[Any, Any], path: FieldPath
) -> dict[str, Any]:
    """Report the keys that a model does not have, and return the others."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    known: dict[str, Any] = {}
    for key, part in value.items():
        if key not in fields:
            document.report((*path, key), f"is unknown{_did_you_mean(str(key), list(fields))}")
            continue
        nested = fields[key].annotation
        if isinstance(part, dict) and isinstance(nested, type) and issubclass(nested, BaseModel):
            part = _known_fields(document, nested, part, (*path, key))
        known[key] = part
    return known


def _did_you_mean(key: str, known: list[str]) -> str:
    plain = {name.lower(): name for name in known}
    close = difflib.get_close_matches(re.sub("[-_]", "", key).lower(), list(plain), n=1)
    return f"; did you mean {plain[close[0]]}?" if close else f"; known are {', '.join(known)}"


def _validate(
    document: _Document, kind: type[InferenceModel] | type[InferenceDeployment], fields: Any
) -> Applicable | None:
    try:
        resource = kind.model_validate(fields)
    except ValidationError as exc:
        for error in exc.errors(include_url=False, include_context=False):
            if error["loc"] in _COUNTS:
                text = f"{_COUNTS[error['loc']]}, found {_short(error['input'])}"
            else:
                text = _WORDS.get(error["type"], error["msg"])
            document.report(error["loc"], text)
        return None
    if isinstance(resource, InferenceModel) and not resource.spec.source.strip():
        document.report(("spec", "source"), "is empty")
    return resource


def _check_name(
    document: _Document,
    kind: type[InferenceModel] | type[InferenceDeployment],
    fields: Mapping[str, Any],
) -> None:
    """Report a deployment's name that is none, whatever else is wrong with it."""
    metadata = fields.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if kind is InferenceDeployment and isinstance(name, str) and not _LABEL.fullmatch(name):
        document.report(
            ("metadata", "name"),
            "must be 1 to 63 lower-case letters, digits and '-', beginning and ending with a letter "
            f"or digit, found {_short(name)}",
        )


def _syntax_problem(exc: yaml.YAMLError, file: str) -> ManifestProblem:
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    reason = getattr(exc, "problem", None) or getattr(exc, "context", None) or "is not YAML"
    return ManifestProblem(file, mark.line + 1 if mark else 1, _printable(str(reason)))


def _printable(text: str) -> str:
    """Return a message in which keys of the file stand, cut and without what a terminal obeys."""
    cut = text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}…"
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut
    )


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    text = str(value)
    return repr(text if len(text) <= 64 else text[:63] + "…")

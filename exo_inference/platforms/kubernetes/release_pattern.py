"""What Helm would write for one more release of a form that it has installed twice. Pure.

Releases of the same model, engine and GPUs differ in five words: the names of release and deployment, its uid,
and two hashes. Where Helm's records of two of them are alike but for these, another one is the same text with its
own words. What differs in any other way is not learnt, so nothing has to be known of the chart; words that YAML
might read as something else than text, or that are longer than any seen, are left to Helm.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import yaml

from exo_inference.kubernetes_api.identity import is_uuid
from exo_inference.platforms.kubernetes.names import PODS_ANNOTATION, release_name
from exo_inference.platforms.kubernetes.release_values import hash_of

_PLURALS = {
    "Service": ("services", ""),
    "PodDisruptionBudget": ("poddisruptionbudgets", "policy/v1"),
    "NetworkPolicy": ("networkpolicies", "networking.k8s.io/v1"),
    "Deployment": ("deployments", "apps/v1"),
}
"""Kinds that are written here, with the name of their collection and API group; others are Helm's."""

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_HASH = re.compile(r"(?=.*[acdf])[0-9a-f]{16}")
"""With a letter that no number has: YAML never takes it for one."""

_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})


class Words(NamedTuple):
    """What releases of one form differ in."""

    release: str
    uid: str
    spec_hash: str
    pods_hash: str
    name: str


_TOKENS = Words(*(f"exo-word-{field.replace('_', '-')}-exo" for field in Words._fields))


@dataclass(frozen=True, slots=True)
class Installed:
    """A release that Helm has installed: what it was given, and what it has written down."""

    words: Words
    values: Mapping[str, Any]
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NewObject:
    """An object to create, and where."""

    plural: str
    group: str
    body: Mapping[str, Any]


def read_words(release: str, values: Mapping[str, Any]) -> Words | None:
    """Return the words of a release; None where they are not plain enough to be put into a text."""
    deployment = values.get("deployment", {})
    words = Words(
        release,
        str(deployment.get("uid", "")),
        str(deployment.get("specHash", "")),
        str(values.get("podAnnotations", {}).get(PODS_ANNOTATION, "")),
        str(deployment.get("name", "")),
    )
    is_plain = (
        is_uuid(words.uid)
        and words.release == release_name(words.uid)
        and _HASH.fullmatch(words.spec_hash)
        and _HASH.fullmatch(words.pods_hash)
        and _NAME.fullmatch(words.name)
        and words.name not in _YAML_WORDS
    )
    return words if is_plain else None


def pattern_key(chart: str, values: Mapping[str, Any]) -> str:
    """Return a hash of everything about a release but its words."""
    bare = dict(values)
    bare["deployment"] = {**values["deployment"], "name": "", "uid": "", "specHash": ""}
    bare["podAnnotations"] = {**values["podAnnotations"], PODS_ANNOTATION: ""}
    return hash_of({"chart": chart, "values": bare})


class ReleasePattern:
    """The releases of one form.

    Args:
        chart: as Helm's records have it.
        namespace: of the releases.
        text: manifest and notes, with tokens for the words.
        max_name: characters of the longest name that it was learnt from.
    """

    def __init__(
        self, chart: object, namespace: str, text: Mapping[str, str], max_name: int
    ) -> None:
        self._text = json.dumps(text)
        self._objects = [
            (*_PLURALS[item["kind"]], json.dumps(_owned(item, namespace)))
            for item in _read_items(text["manifest"])
        ]
        self._max_name = max_name
        # The chart is most of a record and the same in all: it is packed once.
        self._packer = zlib.compressobj(wbits=31)
        same = {"chart": chart, "namespace": namespace, "version": 1}
        self._head = self._packer.compress(json.dumps(same)[:-1].encode())
        self._head += self._packer.flush(zlib.Z_FULL_FLUSH)

    def fits(self, words: Words) -> bool:
        """Whether a name is no longer than one that was seen, so that nothing of it can be cut."""
        return len(words.name) <= self._max_name

    def objects(self, words: Words) -> list[NewObject]:
        """Return the objects of a release, in Helm's order."""
        return [
            NewObject(plural, group, json.loads(_filled(text, words)))
            for plural, group, text in self._objects
        ]

    def record(
        self, words: Words, values: Mapping[str, Any], status: str, description: str, now: datetime
    ) -> dict[str, Any]:
        """Return the Secret in which Helm writes down the first revision of a release."""
        text = json.loads(_filled(self._text, words))
        at = now.isoformat()
        info = {
            "first_deployed": at, "last_deployed": at, "deleted": "", "description": description, "status": status,
            "notes": text["notes"],
        }  # fmt: skip
        rest = {"name": words.release, "info": info, "config": values, "manifest": text["manifest"]}
        packer = self._packer.copy()
        packed = self._head + packer.compress(b"," + json.dumps(rest)[1:].encode()) + packer.flush()
        labels = {"name": words.release, "owner": "helm", "status": status, "version": "1"}
        return {
            "metadata": {
                "name": f"sh.helm.release.v1.{words.release}.v1",
                "labels": {**labels, "modifiedAt": str(int(now.timestamp()))},
            },
            "type": "helm.sh/release.v1",
            "data": {"release": base64.b64encode(base64.b64encode(packed)).decode()},
        }


def learn(one: Installed, other: Installed, namespace: str) -> ReleasePattern | None:
    """Return the form of two releases, or None where they differ in more than their words."""
    if any(left == right for left, right in zip(one.words, other.words, strict=True)):
        return None
    texts = [_text_of(one), _text_of(other)]
    is_alike = texts[0] is not None and texts[0] == texts[1]
    if not is_alike or one.record["chart"] != other.record["chart"]:
        return None
    text = json.loads(texts[0] or "")
    if any(item["kind"] not in _PLURALS for item in _read_items(text["manifest"])):
        return None
    longest = max(len(one.words.name), len(other.words.name))
    return ReleasePattern(one.record["chart"], namespace, text, longest)


def _text_of(installed: Installed) -> str | None:
    """Return manifest and notes with tokens; None where the record is not of a plain installation."""
    record, info = installed.record, installed.record["info"]
    is_plain = (record["version"], info["status"], record.get("hooks") or []) == (1, "deployed", [])
    text = json.dumps({"manifest": record["manifest"], "notes": info.get("notes", "")})
    if not is_plain or record["config"] != installed.values or any(t in text for t in _TOKENS):
        return None
    # In the order of the fields: the release's name has the uid in it.
    for word, token in zip(installed.words, _TOKENS, strict=True):
        text = text.replace(word, token)
    return text


def _filled(text: str, words: Words) -> str:
    for word, token in zip(words, _TOKENS, strict=True):
        text = text.replace(token, word)
    return text


def _read_items(manifest: str) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(manifest) if item]


def _owned(item: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Return an object with what Helm adds, by which it knows its own."""
    metadata = item["metadata"]
    labels = {**metadata.get("labels", {}), "app.kubernetes.io/managed-by": "Helm"}
    annotations = {
        **(metadata.get("annotations") or {}),
        "meta.helm.sh/release-name": _TOKENS.release,
        "meta.helm.sh/release-namespace": namespace,
    }
    return {**item, "metadata": {**metadata, "labels": labels, "annotations": annotations}}

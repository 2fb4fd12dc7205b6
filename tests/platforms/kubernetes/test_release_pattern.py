"""Releases without a Helm process: the text is what Helm writes, and what is not alike is not learnt."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from exo_inference.platforms.kubernetes import PlatformValues
from exo_inference.platforms.kubernetes.helm import find_helm
from exo_inference.platforms.kubernetes.names import DEPLOYMENT_CHART, PODS_ANNOTATION
from exo_inference.platforms.kubernetes.records import Revision, read_record
from exo_inference.platforms.kubernetes.release_pattern import (
    Installed,
    ReleasePattern,
    Words,
    learn,
    pattern_key,
    read_words,
)
from exo_inference.platforms.kubernetes.release_values import Release, build_release
from tests.desired_deployments import altered
from tests.platforms.kubernetes.on_api_server import CHARTS, DESIRED

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
CHART = {"metadata": {"name": DEPLOYMENT_CHART}, "templates": [{"name": "x", "data": "eA=="}]}


def release(name: str, **changes: Any) -> Release:
    """Return a release whose hashes are plain words, as nearly all are."""
    while True:
        desired = altered(DESIRED, uid=str(uuid.uuid4()), name=name, **changes)
        found = build_release(desired, PlatformValues())
        if read_words(found.name, found.values) is not None:
            return found


def words_of(wanted: Release) -> Words:
    words = read_words(wanted.name, wanted.values)
    assert words is not None
    return words


def rendered(wanted: Release) -> str:
    """Return what Helm makes of a release."""
    command = [find_helm(os.environ), "template", wanted.name, str(CHARTS / DEPLOYMENT_CHART)]
    said = subprocess.run(
        [*command, "--values=-", "--namespace=ns"],
        input=json.dumps(wanted.values),
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout


def installed(wanted: Release, text: str, **changes: Any) -> Installed:
    record = {
        "name": wanted.name, "version": 1, "namespace": "ns", "chart": CHART, "config": wanted.values,
        "manifest": text, "info": {"status": "deployed", "notes": f"Deployment {wanted.values['deployment']['name']}"},
    }  # fmt: skip
    return Installed(words_of(wanted), wanted.values, {**record, **changes})


@pytest.fixture(scope="module")
def pattern() -> ReleasePattern:
    one, other = (
        installed(each, rendered(each)) for each in (release("demo"), release("search-7"))
    )
    found = learn(one, other, "ns")
    assert found is not None
    return found


def test_a_third_release_is_what_helm_would_write(pattern: ReleasePattern) -> None:
    third = release("shop")
    words = words_of(third)
    assert pattern.fits(words)
    secret = pattern.record(words, third.values, "deployed", "Install complete", NOW)
    packed = secret["data"]["release"]
    record = read_record(Revision("s", third.name, 1, "deployed", packed))
    assert record["manifest"] == rendered(third)
    assert record["config"] == third.values
    assert (record["chart"], record["version"], record["namespace"]) == (CHART, 1, "ns")
    assert record["info"]["notes"] == "Deployment shop"
    assert secret["metadata"]["labels"]["status"] == record["info"]["status"] == "deployed"


def test_the_objects_are_those_of_the_manifest_with_helms_marks(pattern: ReleasePattern) -> None:
    third = release("shop")
    expected = [item for item in yaml.safe_load_all(rendered(third)) if item]
    found = pattern.objects(words_of(third))
    assert [item.body["kind"] for item in found] == [item["kind"] for item in expected]
    for made, wanted in zip(found, expected, strict=True):
        marks = {
            "meta.helm.sh/release-name": third.name,
            "meta.helm.sh/release-namespace": "ns",
        }
        metadata = made.body["metadata"]
        assert metadata["labels"] == {
            **wanted["metadata"]["labels"],
            "app.kubernetes.io/managed-by": "Helm",
        }
        assert metadata["annotations"] == {**(wanted["metadata"].get("annotations") or {}), **marks}
        assert {**made.body, "metadata": None} == {**wanted, "metadata": None}


def test_a_name_that_is_longer_than_those_seen_is_helms(pattern: ReleasePattern) -> None:
    assert pattern.fits(words_of(release("a" * 8)))
    assert not pattern.fits(words_of(release("a" * 9)))


@pytest.mark.parametrize(
    "name", ["true", "yes", "null", "n", "1-a", "A", "a_b", "a: b", "a\nb", ""]
)
def test_words_that_yaml_may_read_otherwise_are_helms(name: str) -> None:
    values = with_values(release("demo"), "name", name)
    assert read_words(values["deployment"]["uid"], values) is None


@pytest.mark.parametrize(
    "text", ["1234567890123456", "12345678e1234567", "0b01010101010101", "x" * 16, ""]
)
def test_hashes_that_look_like_numbers_are_helms(text: str) -> None:
    wanted = release("demo")
    assert read_words(wanted.name, with_values(wanted, "specHash", text)) is None
    annotations = {**wanted.values["podAnnotations"], PODS_ANNOTATION: text}
    assert read_words(wanted.name, {**wanted.values, "podAnnotations": annotations}) is None


@pytest.mark.parametrize("uid", ["x/../y", "", "0F1E2D3C-4B5A-4678-9ABC-DEF012345678"])
def test_a_uid_that_is_not_canonical_or_has_another_release_is_helms(uid: str) -> None:
    wanted = release("demo")
    assert read_words(f"exo-d-{uid}", with_values(wanted, "uid", uid)) is None
    assert read_words("exo-inference", wanted.values) is None


def with_values(wanted: Release, key: str, text: str) -> dict[str, Any]:
    return {**wanted.values, "deployment": {**wanted.values["deployment"], key: text}}


def test_everything_but_the_words_makes_another_form() -> None:
    one = release("demo")
    assert pattern_key("c", one.values) == pattern_key("c", release("shop").values)
    assert pattern_key("c", one.values) != pattern_key("d", one.values)
    for changes in (
        {"replicas": 3},
        {"engine_parameters": ("--max-num-seqs=1",)},
        {"model": "o/m"},
    ):
        assert pattern_key("c", one.values) != pattern_key("c", release("demo", **changes).values)


def broken(text: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return records that are not of plain, equal installations, and why."""
    return [
        ("another version", {"version": 2}),
        ("failed", {"info": {"status": "failed", "notes": ""}}),
        ("a hook", {"hooks": [{"name": "h"}]}),
        ("another chart", {"chart": {"metadata": {"name": "other"}}}),
        ("values that were merged with others", {"config": {}}),
        ("more in the text", {"manifest": text + "\n# 12:00"}),
        (
            "a kind that is not known",
            {"manifest": text + "\n---\nkind: Job\nmetadata: {name: j}\n"},
        ),
    ]


def test_releases_that_differ_in_more_than_words_are_not_learnt() -> None:
    one, other = release("demo"), release("search")
    texts = rendered(one), rendered(other)
    assert learn(installed(one, texts[0]), installed(other, texts[1]), "ns") is not None
    for why, changes in broken(texts[1]):
        assert (
            learn(installed(one, texts[0]), installed(other, texts[1], **changes), "ns") is None
        ), why
    jobs = [f"{text}\n---\nkind: Job\nmetadata: {{name: j}}\n" for text in texts]
    assert learn(installed(one, jobs[0]), installed(other, jobs[1]), "ns") is None
    assert learn(installed(one, texts[0]), installed(one, texts[0]), "ns") is None


def test_a_name_that_is_a_word_of_the_charts_own_text_is_not_taken_for_it() -> None:
    one, other, third = release("engine"), release("search"), release("shop")
    found = learn(installed(one, rendered(one)), installed(other, rendered(other)), "ns")
    assert found is None
    found = learn(installed(third, rendered(third)), installed(other, rendered(other)), "ns")
    assert found is not None
    record = found.record(words_of(one), one.values, "deployed", "", NOW)
    packed = record["data"]["release"]
    assert read_record(Revision("s", one.name, 1, "deployed", packed))["manifest"] == rendered(one)

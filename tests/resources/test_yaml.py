from __future__ import annotations

import time

import pytest
import yaml

from benchmarks.foreign_files.mutations import mutate_yaml, mutated, passes_first_parser
from exo_inference.resources.base import API_VERSION
from exo_inference.resources.yaml import dump_manifest, parse_manifests

MODEL = """\
apiVersion: inference.exo.dev/v1alpha1
kind: InferenceModel
metadata: {name: tiny}
spec:
  source: exo/tiny-chat
"""

# The example of the design page, and the whole form of a deployment.
DEPLOYMENT = """\
apiVersion: inference.exo.dev/v1alpha1
kind: InferenceDeployment
metadata: {name: chat}
spec:
  model: exo/tiny-chat
  gpuType: gpua5000
  gpuCount: 1
  replicas: 2
  engine: {name: exo, version: "0.1.0"}
  engineParameters: ["--max-model-len=32768", "--kv-cache-dtype=fp8"]
"""


def problems(text: str) -> list[str]:
    manifests, found = parse_manifests(text, "f.yaml")
    assert manifests == []
    return [str(problem) for problem in found]


def changed(old: str, new: str) -> str:
    assert old in DEPLOYMENT
    return DEPLOYMENT.replace(old, new)


def test_documents_of_one_file_keep_their_order_and_lines():
    manifests, found = parse_manifests(f"# hello\n---\n{MODEL}---\n---\n{DEPLOYMENT}", "f.yaml")
    assert found == []
    assert [(m.resource.kind, m.line) for m in manifests] == [
        ("InferenceModel", 3),
        ("InferenceDeployment", 10),
    ]
    assert manifests[1].resource.spec.engine_parameters[1] == "--kv-cache-dtype=fp8"


def test_spec_of_a_manifest_has_only_what_the_file_says():
    text = changed("  gpuCount: 1\n  replicas: 2\n", "").replace(
        '{name: exo, version: "0.1.0"}', "{}"
    )
    manifests, _ = parse_manifests(text, "f")
    assert sorted(manifests[0].spec) == ["engine", "engineParameters", "gpuType", "model"]
    assert manifests[0].spec["engine"] == {}
    assert manifests[0].resource.spec.gpu_count == 1


def test_what_a_cluster_adds_is_ignored():
    text = changed(
        "metadata: {name: chat}",
        "metadata: {name: chat, uid: u, generation: 3, creationTimestamp: null, namespace: x,\n"
        "  managedFields: [{a: 1}], labels: {team: ml}}\nstatus: {whatever: [1]}",
    )
    manifests, found = parse_manifests(text, "f")
    assert found == []
    assert manifests[0].resource.metadata.uid == ""
    assert manifests[0].resource.metadata.labels == {"team": "ml"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(
            changed("gpuType", "gpuTyp"),
            "f.yaml:6: spec.gpuTyp is unknown; did you mean gpuType?",
            id="misspelt",
        ),
        pytest.param(
            changed("gpuCount", "gpu_count"),
            "f.yaml:7: spec.gpu_count is unknown; did you mean gpuCount?",
            id="snake-case",
        ),
        pytest.param(
            changed("name: exo, version", "name: exo, versoin"),
            "f.yaml:9: spec.engine.versoin is unknown; did you mean version?",
            id="nested",
        ),
        pytest.param(
            changed("spec:", "sepc: {}\nspec:"),
            "f.yaml:4: sepc is unknown; did you mean spec?",
            id="top-level",
        ),
        pytest.param(
            changed("v1alpha1", "v2"),
            "f.yaml:1: apiVersion must be inference.exo.dev/v1alpha1, found 'inference.exo.dev/v2'",
            id="api-version",
        ),
        pytest.param(
            changed("InferenceDeployment", "Deployment"),
            "f.yaml:2: kind must be InferenceModel or InferenceDeployment, found 'Deployment'",
            id="kind",
        ),
        pytest.param("a: 1", "f.yaml:1: kind must be InferenceModel or InferenceDeployment, found nothing", id="no-kind"),
        pytest.param("- 1", "f.yaml:1: must be a mapping with apiVersion, kind, metadata and spec", id="list"),
        pytest.param(changed("replicas: 2", "replicas: x"), "f.yaml:8: spec.replicas must be a whole number from 0 to 100, found 'x'", id="text"),
        pytest.param(changed("replicas: 2", "replicas: yes"), "f.yaml:8: spec.replicas must be a whole number from 0 to 100, found true", id="bool"),
        pytest.param(changed("replicas: 2", 'replicas: "2"'), "f.yaml:8: spec.replicas must be a whole number from 0 to 100, found '2'", id="quoted-number"),
        pytest.param(changed("replicas: 2", "replicas: 2.0"), "f.yaml:8: spec.replicas must be a whole number from 0 to 100, found 2.0", id="number-with-a-point"),
        pytest.param(changed("replicas: 2", "replicas: 101"), "f.yaml:8: spec.replicas must be a whole number from 0 to 100, found 101", id="too-many"),
        pytest.param(changed("replicas: 2", "replicas: -1"), "f.yaml:8: spec.replicas must be a whole number from 0 to 100, found -1", id="negative"),
        pytest.param(changed("gpuCount: 1", "gpuCount: 0"), "f.yaml:7: spec.gpuCount must be a whole number from 1, found 0", id="zero"),
        pytest.param(changed("gpuCount: 1", "gpuCount: 1.5"), "f.yaml:7: spec.gpuCount must be a whole number from 1, found 1.5", id="fraction"),
        pytest.param(changed('"0.1.0"', "0.1"), "f.yaml:9: spec.engine.version must be text; put it in quotes", id="unquoted-version"),
        pytest.param(changed("model: exo/tiny-chat", "model: {a: 1}"), "f.yaml:5: spec.model must be text; put it in quotes", id="mapping"),
        pytest.param(
            changed('["--max-model-len=32768", "--kv-cache-dtype=fp8"]', '"--a --b"'),
            "f.yaml:10: spec.engineParameters must be a list",
            id="string-of-flags",
        ),
        pytest.param(
            changed('"--kv-cache-dtype=fp8"', "3"),
            "f.yaml:10: spec.engineParameters.1 must be text; put it in quotes",
            id="number-among-flags",
        ),
        pytest.param(changed("  gpuType: gpua5000\n", ""), "f.yaml:4: spec.gpuType is missing", id="missing"),
        pytest.param(MODEL.replace("exo/tiny-chat", '""'), "f.yaml:5: spec.source is empty", id="empty-source"),
        pytest.param(changed("replicas: 2", "gpuCount: 2"), "f.yaml:8: the key 'gpuCount' stands here twice", id="twice"),
        pytest.param("a: [1", "f.yaml:1: expected ',' or ']', but got '<stream end>'", id="syntax"),
        pytest.param("a: !!python/object:os.system x", "f.yaml:1: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object:os.system'", id="unsafe-tag"),
        pytest.param("a: \x07", "f.yaml:1: is not YAML: unacceptable character #x0007: special characters are not allowed", id="control-character"),
    ],
)  # fmt: skip
def test_wrong_documents_are_refused_with_file_and_line(text: str, problem: str):
    assert problem in problems(text)


def test_names_of_deployments_are_dns_labels():
    (problem,) = problems(changed("name: chat", "name: My_Chat"))
    assert problem.startswith("f.yaml:3: metadata.name must be 1 to 63 lower-case letters")


def test_a_bad_name_is_told_with_all_else_that_is_wrong():
    text = changed("name: chat", "name: x y").replace("gpuCount: 1", "gpuCount: none")
    found = problems(text)
    assert len(found) == 2
    assert found[0].startswith("f.yaml:3: metadata.name must be 1 to 63 lower-case letters")
    assert found[1].startswith("f.yaml:7: spec.gpuCount must be a whole number")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 5000, id="deep-nesting"),
        pytest.param("&a [*a]", id="recursive-alias"),
        pytest.param(
            "a: &a [x, x]\n" + "".join(f"{c}: &{c} [*{p}, *{p}]\n" for p, c in zip("abcdefghijklmnopqrstuvwx", "bcdefghijklmnopqrstuvwxy", strict=True)),
            id="billion-laughs",
        ),
        pytest.param("? [1, 2]\n: 3", id="list-as-a-key"),
        pytest.param("2026-13-45: 1\nkind: 2026-13-45", id="impossible-date"),
    ],
)  # fmt: skip
def test_hostile_documents_are_a_problem_and_no_crash(text: str):
    assert problems(text)


def test_what_is_written_reads_back_the_same():
    spec = {
        "model": "org/x",
        "gpuType": "cpu",
        "engine": {"version": "0.25"},
        "engineParameters": ["--a={}", "on"],
    }
    text = dump_manifest("InferenceDeployment", "chat", spec)
    manifests, found = parse_manifests(text, "f")
    assert found == []
    assert manifests[0].spec == spec
    assert list(yaml.safe_load(text)) == ["apiVersion", "kind", "metadata", "spec"]


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{BOMB}kind: *i\n", "more than 100000 values with its aliases"),
        ("kind: &a [*a]\n", "nested deeper than 64 levels"),
        ("&a {*a : *a}\n", "nested deeper than 64 levels"),
        ("kind: " + "[" * 200 + "]" * 200, "nested deeper than 64 levels"),
        ("kind: " + "1:" * 100_000 + "1\n", "a number of 200001 characters"),
        ("kind: " + "1:" * 100_000 + "1.5\n", "a number of 200003 characters"),
        ("kind: 0x" + "f" * 100_000 + "\n", "a number of 100002 characters"),
        ("kind: !!int '" + "1" * 100_000 + "'\n", "a number of 100000 characters"),
        ("kind: !!python/object/apply:os.system [id]\n", "could not determine a constructor"),
    ],
    ids=["bomb", "itself", "key", "deep", "base 60", "float", "hex", "tagged", "object"],
)
def test_what_would_take_hours_is_refused_at_once(text: str, words: str) -> None:
    before = time.process_time()
    manifests, problems = parse_manifests(text, "f.yaml")
    assert not manifests
    assert any(words in problem.message for problem in problems), problems
    assert time.process_time() - before < 5.0


def test_aliases_in_use_are_taken() -> None:
    labels = "&l {a: b}\n  annotations: *l"
    text = (
        f"apiVersion: {API_VERSION}\nkind: InferenceModel\nmetadata:\n  name: m\n  labels: {labels}\n"
        "spec:\n  source: org/m\n"
    )
    assert len(parse_manifests(text, "f.yaml")[0]) == 1


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_mutated_manifest_is_taken_or_refused_in_words(seed: int) -> None:
    text = dump_manifest(
        "InferenceDeployment", "chat", {"model": {"name": "org/m"}, "gpuType": "cpu", "gpuCount": 1}
    )
    num_refused = num_past = 0
    for content in mutated(text.encode(), mutate_yaml, 60, seed=seed):
        num_past += passes_first_parser("m.yaml", content)
        _, problems = parse_manifests(content.decode("utf-8", "replace"), "m.yaml")
        num_refused += bool(problems)
        for problem in problems:
            assert len(problem.message) < 8000, content
            assert problem.message.isprintable(), content
    assert num_past >= 20
    assert num_refused > 10

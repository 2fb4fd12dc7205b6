from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from exo_inference.sdk import Client

from .conftest import COMMIT, Exo
from .test_apply import deployment, model, write


@pytest.fixture
def applied(exo: Exo) -> str:
    """A zone with a model and two deployments, and the file it was made from."""
    file = write(
        model(),
        deployment(replicas=2, engineParameters='["--max-model-len=64", "--seed=1"]'),
        deployment("code", gpuType="gpua5000", gpuCount=2),
    )
    assert exo("apply", "-f", file, "--wait").code == 0
    return file


def test_no_difference_is_zero_and_silent(exo: Exo, applied: str):
    ran = exo("diff", "-f", applied)
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_difference_is_one_and_a_unified_diff(exo: Exo, applied: str):
    ran = exo("diff", "-f", write(deployment(replicas=3, engineParameters='["--seed=1"]')))
    assert ran.code == 1
    assert "--- zone/inferencedeployment/chat\n+++ files/inferencedeployment/chat\n" in ran.out
    assert "-  replicas: 2\n+  replicas: 3\n" in ran.out
    assert "-  - --max-model-len=64\n" in ran.out
    assert "gpua5000" not in ran.out


def test_new_and_pruned_objects_are_whole(exo: Exo, applied: str):
    ran = exo("diff", "-f", write(deployment("new")), "--prune")
    assert ran.code == 1
    assert "+  name: new\n" in ran.out
    assert "-  name: chat\n" in ran.out
    assert "-  name: code\n" in ran.out
    assert "-  source: org/m" not in ran.out


def test_replacement_is_marked(exo: Exo, applied: str):
    ran = exo("diff", "-f", write(deployment(gpuType="gpua5000")))
    assert ran.code == 1
    assert "cannot be changed in place: needs --replace" in ran.out


def test_diff_as_json(exo: Exo, applied: str):
    ran = exo("diff", "-f", write(deployment(replicas=3)), "-O", "json")
    assert ran.code == 1
    assert ran.json == [
        {
            "kind": "InferenceDeployment",
            "name": "chat",
            "action": "update",
            "changes": [{"field": "replicas", "before": 2, "after": 3}],
        }
    ]


def test_failure_of_diff_is_told_apart_from_a_difference(exo: Exo, applied: str, monkeypatch):
    assert exo("diff", "-f", write("a: 1", to="wrong.yaml")).code == 2
    assert exo("diff", "-f", "none.yaml").code == 2
    assert exo("diff").code == 2
    monkeypatch.setenv("EXOSCALE_API_KEY", "EXOk")
    monkeypatch.setenv("EXOSCALE_API_SECRET", "s")
    monkeypatch.setenv("EXOSCALE_API_ENDPOINT", "http://127.0.0.1:9/v2")
    ran = exo("diff", "-f", applied)
    assert ran.code == 2
    assert "cannot connect" in ran.err


class Unreadable:
    """A standard input whose reading fails, as one that is a directory or a broken mount."""

    def read(self, size: int) -> str:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("verb", ["diff", "apply"])
@pytest.mark.parametrize("stdin", [None, Unreadable()], ids=["closed", "unreadable"])
def test_a_standard_input_that_cannot_be_read_is_a_wrong_command_line(
    exo: Exo, verb: str, stdin: object, monkeypatch: pytest.MonkeyPatch
):
    """With 1 a script would take it for a difference."""
    monkeypatch.setattr("sys.stdin", stdin)
    ran = exo(verb, "-f", "-", "-O", "json")
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    error = json.loads(line)["error"]
    assert (error["type"], error["exit_code"]) == ("UsageError", 2)
    assert "standard input" in error["message"]


def test_what_was_exported_applies_without_changes(exo: Exo, applied: str):
    exported = exo("export")
    assert exported.code == 0
    documents = list(yaml.safe_load_all(exported.out))
    assert [d["kind"] for d in documents] == ["InferenceModel", *["InferenceDeployment"] * 2]
    assert all(sorted(d) == ["apiVersion", "kind", "metadata", "spec"] for d in documents)
    Path("exported.yaml").write_text(exported.out)
    again = exo("apply", "-f", "exported.yaml", "--prune", "--yes")
    assert {line.split()[-1] for line in again.lines} == {"unchanged"}
    assert len(again.lines) == 3
    assert exo("diff", "-f", "exported.yaml", "--prune").code == 0


def test_exported_files_rebuild_an_empty_zone(exo: Exo, applied: str, zone: Client):
    assert exo("export", "-f", "repo/").code == 0
    names = sorted(path.name for path in Path("repo").iterdir())
    assert names[:2] == ["inferencedeployment-chat.yaml", "inferencedeployment-code.yaml"]
    assert names[2].startswith("inferencemodel-org-m-")
    before = {d.name: zone.deployments.get(d.id) for d in zone.deployments.list()}
    for deployment_ in before.values():
        zone.deployments.delete(deployment_.id)
        zone.deployments.wait_until_deleted(deployment_.id, timeout=10)
    assert exo("apply", "-f", "repo", "--wait").code == 0
    after = {d.name: zone.deployments.get(d.id) for d in zone.deployments.list()}
    assert after.keys() == before.keys()
    for name, then in before.items():
        assert after[name].gpu_type == then.gpu_type
        assert after[name].gpu_count == then.gpu_count
        assert after[name].replicas == then.replicas
        assert after[name].inference_engine_parameters == then.inference_engine_parameters
    assert exo("diff", "-f", "repo", "--prune").code == 0


def test_export_into_one_file_and_as_json(exo: Exo, applied: str):
    ran = exo("export", "-f", "one.yaml")
    assert ran.lines == ["3 objects written to one.yaml"]
    assert len(list(yaml.safe_load_all(Path("one.yaml").read_text()))) == 3
    assert Path("one.yaml").stat().st_mode & 0o777 == 0o644
    documents = exo("export", "-O", "json").json
    assert documents == list(yaml.safe_load_all(Path("one.yaml").read_text()))


def test_export_keeps_names_and_places_that_the_files_have(exo: Exo, applied: str):
    assert exo("export", "-f", "repo/").code == 0
    (made,) = Path("repo").glob("inferencemodel-*.yaml")
    mine = Path("repo/models/ours.yaml")
    mine.parent.mkdir()
    mine.write_text(re.sub("name: .*", "name: ours", made.read_text(), count=1))
    made.unlink()
    before = {path: path.read_text() for path in Path("repo").rglob("*.yaml")}
    assert exo("export", "-f", "repo").code == 0
    assert {path: path.read_text() for path in Path("repo").rglob("*.yaml")} == before
    one = Path("one.yaml")
    one.write_text("---\n".join(before.values()))
    assert exo("export", "-f", "one.yaml").code == 0
    assert "name: ours\n" in one.read_text()


def test_export_refuses_to_write_what_a_shared_file_has(exo: Exo, applied: str):
    Path("repo").mkdir()
    Path("repo/all.yaml").write_text(exo("export").out)
    ran = exo("export", "-f", "repo")
    assert (ran.code, ran.out) == (1, "")
    assert "would be there twice" in ran.err
    assert [path.name for path in Path("repo").iterdir()] == ["all.yaml"]


def test_only_models_of_the_hub_are_exported_with_their_revision(exo: Exo, zone: Client):
    exo("apply", "-f", write(model(), model("exo/tiny"), model("file:///srv/m")), "--wait")
    specs = {d["spec"]["source"]: d["spec"] for d in yaml.safe_load_all(exo("export").out)}
    assert specs["org/m"]["revision"] == COMMIT
    assert specs["exo/tiny"] == {"source": "exo/tiny"}
    assert specs["file:///srv/m"] == {"source": "file:///srv/m"}


def test_export_of_an_empty_zone_is_empty(exo: Exo, zone: Client):
    assert exo("export").out == ""


def test_place_that_cannot_be_written_is_named(exo: Exo, applied: str):
    ran = exo("export", "-f", "no/such/dir/file.yaml")
    assert ran.code == 1
    assert "cannot write" in ran.err
    assert "no/such/dir" in ran.err


@pytest.mark.parametrize("name", ["apply", "diff", "export"])
def test_every_command_has_help_with_examples(exo: Exo, name: str):
    ran = exo(name, "--help")
    assert ran.code == 0
    assert ran.out.count(f"exo ai {name}") >= 3

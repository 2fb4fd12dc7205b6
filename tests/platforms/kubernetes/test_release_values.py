"""Values of releases: what of a deployment and of the administrator goes in, and what changes what."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from exo_inference.errors import ConfigurationError, PlatformError
from exo_inference.platforms.base import DesiredDeployment, DesiredModel
from exo_inference.platforms.kubernetes import PlatformValues, read_platform_values
from exo_inference.platforms.kubernetes.helm import as_yaml, find_helm
from exo_inference.platforms.kubernetes.model_values import model_path, model_values
from exo_inference.platforms.kubernetes.names import (
    PARAMETERS_ANNOTATION,
    model_release_name,
    read_flags,
    release_name,
)
from exo_inference.platforms.kubernetes.nodes import GpuNode, affinity_of, gpu_nodes
from exo_inference.platforms.kubernetes.placement import choose_release, surge_note
from exo_inference.platforms.kubernetes.release_values import (
    IN_PLACE,
    SURGE,
    Release,
    build_release,
    merged,
)
from exo_inference.platforms.kubernetes.replicas import observe_pod
from exo_inference.platforms.kubernetes.step import Live, read_live
from tests.desired_deployments import altered, desired_deployment
from tests.platforms.kubernetes.recorded import node, pod, unscheduled
from tests.platforms.kubernetes.test_step import NOW

CHARTS = Path(__file__).parents[3] / "charts"
UID = "7d3b9f0e-5a55-4b8b-9a5e-0d1f6c1d2a11"
DESIRED = desired_deployment(
    uid=UID,
    name="chat",
    model="org/m",
    model_path="pvc:models/m1",
    gpu_type="gpua5000",
    gpu_count=2,
    replicas=2,
    engine="vllm",
    engine_version="0.33.0",
    engine_parameters=("--max-model-len=4096", '--x={"a": 1}'),
    model_size_bytes=10**10,
)
A5000 = {"nvidia.com/gpu.product": "NVIDIA-RTX-A5000", "nvidia.com/gpu.memory": "24564"}
NODES = gpu_nodes([node("n1", gpus=4, labels=A5000)], [])


def find_nodes() -> list[GpuNode]:
    return NODES


def no_nodes() -> list[GpuNode]:
    return []


@pytest.mark.parametrize(
    ("engine", "asked", "version"),
    [("vllm", None, "0.28.0"), ("vllm", "0.33.0", "0.33.0"), ("sglang", None, "0.5.17")],
)
def test_an_engine_without_a_version_has_the_release_whose_flags_are_known(
    engine: str, asked: str | None, version: str
) -> None:
    """Otherwise its image would have the version of the chart, which there is not."""
    desired = altered(DESIRED, engine=engine, engine_version=asked)
    assert build_release(desired, PlatformValues()).values["engine"]["version"] == version
    exo = altered(DESIRED, engine="exo", engine_version=asked)
    assert "version" not in build_release(exo, PlatformValues()).values["engine"]


def hashes(desired: DesiredDeployment, given: PlatformValues | None = None) -> tuple[str, str]:
    release = build_release(desired, given or PlatformValues())
    return release.spec_hash, release.pods_hash


def test_the_deployment_is_in_the_values() -> None:
    values = build_release(DESIRED, PlatformValues()).values
    assert values["model"] == {
        "source": "org/m",
        "sizeBytes": 10**10,
        "claimName": "models",
        "subPath": "m1",
    }
    assert values["gpu"] == {"type": "gpua5000", "count": 2}
    assert values["engine"]["version"] == "0.33.0"
    assert values["engine"]["parameters"] == list(DESIRED.spec.engine_parameters)
    assert (
        build_release(altered(DESIRED, gpu_type="cpu"), PlatformValues()).values["gpu"]["count"]
        == 0
    )


def test_the_version_on_the_wire_is_not_that_of_exo_engine() -> None:
    values = build_release(altered(DESIRED, engine="exo"), PlatformValues()).values
    assert "version" not in values["engine"]


@pytest.mark.parametrize(
    ("changes", "spec_changes", "pods_change"),
    [
        pytest.param({}, False, False, id="nothing"),
        pytest.param({"replicas": 5}, True, False, id="number"),
        pytest.param({"engine_parameters": ("--a",)}, True, True, id="parameters"),
        pytest.param({"engine_version": "0.12.0"}, True, True, id="version"),
        pytest.param({"model_path": "pvc:other"}, True, True, id="model"),
        pytest.param({"unrouted": frozenset({"r"})}, False, False, id="routes"),
        pytest.param({"roll": "a"}, True, True, id="new replicas asked for"),
        pytest.param({"restarted_at": NOW}, False, False, id="restart"),
    ],
)
def test_only_what_pods_are_made_of_replaces_them(
    changes: dict[str, Any], spec_changes: bool, pods_change: bool
) -> None:
    before, after = hashes(DESIRED), hashes(altered(DESIRED, **changes))
    assert (before[0] != after[0], before[1] != after[1]) == (spec_changes, pods_change)


@pytest.mark.parametrize(
    "given", [PlatformValues(), PlatformValues({"podAnnotations": {"a": "b"}})]
)
def test_new_replicas_asked_for_are_of_the_same_version(given: PlatformValues) -> None:
    first = build_release(DESIRED, given)
    rolled = build_release(altered(DESIRED, roll="a"), given)
    assert first.unrolled_hash == first.pods_hash == rolled.unrolled_hash != rolled.pods_hash
    assert (first.roll, rolled.roll) == ("", "a")


def test_strategy_nodes_and_chart_version_do_not_replace_pods() -> None:
    given = PlatformValues()
    first = build_release(DESIRED, given)
    second = build_release(
        DESIRED, given, strategy=IN_PLACE, affinity={"nodeAffinity": {}}, chart_version="2"
    )
    assert first.pods_hash == second.pods_hash
    assert first.spec_hash != second.spec_hash


def test_the_administrators_values_are_under_ours() -> None:
    given = PlatformValues(
        deployment={"priorityClassName": "low", "gpu": {"resourceName": "x.com/gpu"}},
        engines={"vllm": {"engine": {"image": {"registry": "r.example"}}}, "exo": {"x": 1}},
        gpus={"gpua5000": {"priorityClassName": "high", "gpu": {"count": 9}}},
    )
    values = build_release(DESIRED, given).values
    assert values["priorityClassName"] == "high"
    assert values["gpu"] == {"resourceName": "x.com/gpu", "type": "gpua5000", "count": 2}
    assert values["engine"]["image"] == {"registry": "r.example"}
    assert given.deployment == {"priorityClassName": "low", "gpu": {"resourceName": "x.com/gpu"}}


def test_a_model_of_one_machine_is_refused() -> None:
    with pytest.raises(PlatformError, match="pods cannot reach"):
        build_release(altered(DESIRED, model_path="/models/m"), PlatformValues())


@pytest.mark.parametrize("uid", [UID, "a", "x" * 200, "UPPER", "a/b", "ä"])
def test_release_names_are_stable_and_short_enough_for_helm(uid: str) -> None:
    for name_of in (release_name, model_release_name):
        name = name_of(uid)
        assert name == name_of(uid)
        assert len(name) <= 53
        assert name.replace("-", "").isascii()
        assert name == name.lower()
    assert release_name(uid) != release_name(uid + "2")


def rendered(release: Release, values: str, home: Path) -> dict[str, Any]:
    """Return the Deployment that the real Helm makes of the values, which are as text."""
    done = subprocess.run(
        [find_helm({"PATH": ""}), "template", release.name, str(CHARTS / "inference-deployment"), "-f", "-"],
        input=values, capture_output=True, text=True, check=True,
        env={"HOME": str(home)},
    )  # fmt: skip
    items: list[dict[str, Any]] = list(yaml.safe_load_all(done.stdout))
    return next(item for item in items if item["kind"] == "Deployment")


def test_the_chart_takes_the_values(tmp_path: Path) -> None:
    """Rendered by the real Helm, with and without GPUs."""
    for desired in (DESIRED, altered(DESIRED, gpu_type="cpu", engine="exo")):
        release = choose_release(desired, PlatformValues(), None, (), find_nodes, chart_version="1")
        found = rendered(release, json.dumps(release.values), tmp_path)
        live = read_live(found)
        assert live is not None
        assert (live.spec_hash, live.pods_hash) == (release.spec_hash, release.pods_hash)
        assert (live.replicas, live.strategy) == (2, SURGE)
        renamed = altered(desired, name="another")
        for same in (desired, renamed):
            again = choose_release(same, PlatformValues(), live, (), find_nodes, chart_version="1")
            assert again == release
        other = altered(renamed, engine_parameters=())
        changed = choose_release(other, PlatformValues(), live, (), find_nodes, chart_version="1")
        assert changed.values["deployment"]["name"] == "another"


def test_variables_of_an_engine_reach_its_container(tmp_path: Path) -> None:
    env = [{"name": "EXO_ENGINE_CPU_KERNELS", "value": "off"}]
    given = PlatformValues(engines={"exo": {"engine": {"env": env}}})
    release = build_release(altered(DESIRED, gpu_type="cpu", engine="exo"), given)
    found = rendered(release, json.dumps(release.values), tmp_path)
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert env[0] in container["env"]


@pytest.mark.parametrize(
    "text",
    ["𝕏😀", "a\u2028b\ufeff", "\\ud835\\udd4f", "{{ .Release.Name }}", '{{ fail "x" }}', "a\nb: 'c' #"],
)  # fmt: skip
def test_any_text_of_a_flag_comes_through_helm_as_it_is(tmp_path: Path, text: str) -> None:
    flags = (f"--chat-template={text}",)
    release = build_release(altered(DESIRED, engine_parameters=flags), PlatformValues())
    found = rendered(release, as_yaml(release.values), tmp_path)
    annotations = found["spec"]["template"]["metadata"]["annotations"]
    assert read_flags(annotations[PARAMETERS_ANNOTATION]) == flags


# -- nodes and strategies


def live_of(pods_hash: str, **changes: Any) -> Live:
    return Live(pods_hash=pods_hash, **changes)


def chosen(live: Live | None, pods: list[Any], free: int, **changes: Any) -> dict[str, Any]:
    nodes = gpu_nodes([node("n1", gpus=4, labels=A5000)], [pod(node="n1", gpus=4 - free)])
    desired = altered(DESIRED, **changes)
    release = choose_release(
        desired, PlatformValues(), live, pods, lambda: nodes, chart_version="1"
    )
    found: dict[str, Any] = release.values["rollout"]
    return found


IN_PLACE_VALUES = {"maxSurge": 0, "maxUnavailable": 1}
SURGE_VALUES = {"maxSurge": 1, "maxUnavailable": 0}
OLD = pod(name="old", pods_hash="old", ready=True)


def test_an_update_surges_where_a_gpu_is_free_and_goes_in_place_where_none_is() -> None:
    assert chosen(None, [], free=0) == SURGE_VALUES
    assert chosen(live_of("old"), [OLD], free=2) == SURGE_VALUES
    assert chosen(live_of("old"), [OLD], free=1) == IN_PLACE_VALUES  # a replica takes two
    assert chosen(live_of("old"), [], free=0) == SURGE_VALUES
    assert chosen(live_of("old"), [OLD], free=0, replicas=0) == SURGE_VALUES


def test_a_rollout_that_is_stuck_for_a_gpu_goes_on_in_place_and_stays_so() -> None:
    pods_hash = hashes(DESIRED)[1]
    stuck = unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    stuck["metadata"]["annotations"]["inference.exo.dev/pods-hash"] = pods_hash
    leaving = pod(name="leaving", pods_hash="old", deleting=True)
    assert chosen(live_of(pods_hash), [OLD, stuck], free=0) == IN_PLACE_VALUES
    assert chosen(live_of(pods_hash), [OLD, stuck, leaving], free=0) == SURGE_VALUES
    assert chosen(live_of(pods_hash), [stuck], free=0) == SURGE_VALUES  # only more replicas
    assert chosen(live_of(pods_hash, strategy=IN_PLACE), [OLD], free=4) == IN_PLACE_VALUES


def test_the_administrators_strategy_is_kept() -> None:
    given = PlatformValues(gpus={"gpua5000": {"rollout": {"maxSurge": 2, "maxUnavailable": 0}}})
    release = choose_release(DESIRED, given, live_of("old"), [OLD], find_nodes, chart_version="1")
    assert release.values["rollout"] == {"maxSurge": 2, "maxUnavailable": 0}


def test_an_update_in_place_is_said_while_the_old_version_serves() -> None:
    release = build_release(DESIRED, PlatformValues(), strategy=IN_PLACE)
    old, new = (observe_pod(p, "new", now=NOW) for p in (OLD, pod(pods_hash="new")))
    assert "no GPU is free" in surge_note(release, Live(), (old, new))
    assert surge_note(release, Live(), (new,)) == ""
    assert surge_note(build_release(DESIRED, PlatformValues()), Live(), (old, new)) == ""


def test_pods_stay_on_nodes_of_their_family() -> None:
    release = choose_release(DESIRED, PlatformValues(), None, (), find_nodes, chart_version="1")
    assert "NVIDIA-RTX-A5000" in json.dumps(release.values["affinity"])
    tolerations = release.values["tolerations"]
    assert tolerations[0]["key"] == "nvidia.com/gpu"
    cpu = choose_release(
        altered(DESIRED, gpu_type="cpu"), PlatformValues(), None, (), find_nodes, chart_version="1"
    )
    assert "affinity" not in cpu.values


def test_a_running_release_keeps_its_nodes_though_the_cluster_changes() -> None:
    affinity = affinity_of(NODES, "gpua5000")
    release = choose_release(
        DESIRED, PlatformValues(), live_of(hashes(DESIRED)[1], affinity=affinity), (), no_nodes, chart_version="1"
    )  # fmt: skip
    assert release.values["affinity"] == affinity


def test_nodes_that_a_hand_chose_are_not_taken_for_ours() -> None:
    mine = live_of(hashes(DESIRED)[1], affinity={"nodeAffinity": {}}, edited=True)
    release = choose_release(DESIRED, PlatformValues(), mine, (), lambda: NODES, chart_version="1")
    assert release.values["affinity"] == affinity_of(NODES, DESIRED.spec.gpu_type)


def test_a_family_that_no_node_has_is_said() -> None:
    with pytest.raises(PlatformError, match=r"gpub300; they have: gpua5000"):
        choose_release(
            altered(DESIRED, gpu_type="gpub300"), PlatformValues(), None, (), find_nodes, chart_version="1"
        )  # fmt: skip
    given = PlatformValues(gpus={"gpub300": {"nodeSelector": {"pool": "b300"}}})
    made_on_demand = choose_release(
        altered(DESIRED, gpu_type="gpub300"), given, None, (), no_nodes, chart_version="1"
    )
    assert made_on_demand.values["nodeSelector"] == {"pool": "b300"}


# -- models and the administrator's file


MODEL = DesiredModel(UID, "m", "org/m", "abc", 1000, token="hf_secret")


def test_a_models_values_name_the_secret_and_not_the_token() -> None:
    values = model_values(MODEL, {}, "1")
    assert "hf_secret" not in json.dumps(values)
    assert values["download"]["token"]["secretName"] == f"exo-m-{UID}-token"
    assert model_path(f"exo-m-{UID}", values) == f"pvc:exo-m-{UID}"


def test_a_shared_claim_has_a_directory_per_model() -> None:
    values = model_values(MODEL, {"storage": {"existingClaim": "models"}}, "1")
    assert model_path(UID, values) == f"pvc:models/{UID}"


def test_a_download_is_made_again_for_another_attempt_and_not_for_a_missing_token() -> None:
    def label(model: DesiredModel) -> str:
        found: str = model_values(model, {}, "1")["commonLabels"]["inference.exo.dev/spec-hash"]
        return found

    assert label(MODEL) == label(replace(MODEL, token=None))
    assert label(MODEL) != label(replace(MODEL, attempt=1))
    assert label(MODEL) != label(replace(MODEL, revision="def"))


def test_merging_is_helms() -> None:
    base = {"a": {"b": 1, "c": [1]}, "d": 1}
    assert merged(base, {"a": {"c": [2]}, "d": {"e": 1}}) == {
        "a": {"b": 1, "c": [2]},
        "d": {"e": 1},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "cannot read"),
        ("[]", "expected an object"),
        ('{"x": {}}', "unknown 'x'"),
        ('{"gpuValues": {"gpu3": 1}}', "gpuValues"),
        ('{"deploymentValues": 1}', "deploymentValues"),
    ],
)
def test_a_file_of_values_that_is_wrong_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "platform.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        read_platform_values(path)


def test_the_file_that_the_chart_makes_is_read(tmp_path: Path) -> None:
    values = yaml.safe_load((CHARTS / "exo-inference" / "values.yaml").read_text())["platform"]
    path = tmp_path / "platform.json"
    path.write_text(json.dumps(values | {"deploymentValues": {"replicas": 1, "drain": {}}}))
    assert read_platform_values(path).deployment == {"replicas": 1, "drain": {}}


def test_whether_models_span_nodes_is_true_or_false(tmp_path: Path) -> None:
    path = tmp_path / "platform.json"
    path.write_text('{"spansNodes": "yes"}')
    with pytest.raises(ConfigurationError, match="spansNodes must be true or false"):
        read_platform_values(path)


def test_helm_is_found_beside_this_python_or_on_the_path() -> None:
    assert shutil.which(find_helm({"PATH": ""}))

"""Engines that only a cluster runs: every flag of their catalogues, and what the platform keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from exo_inference.engines import ENGINES, ReplicaCommand, UnknownEngineRelease, get_engine
from exo_inference.engines.base import EngineNotInstalled
from exo_inference.engines.cluster_engine import ClusterEngine
from exo_inference.engines.flags.problems import REASONS
from exo_inference.engines.registry import engines_on
from exo_inference.wire import EngineParameter
from scripts.kubernetes import images

CLUSTER_ENGINES = tuple(name for name in ENGINES if isinstance(get_engine(name), ClusterEngine))
ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
DOCKERFILES = ROOT / "engine-images"


def engine_of(name: str) -> ClusterEngine:
    engine = get_engine(name)
    assert isinstance(engine, ClusterEngine)
    return engine


def reasons(engine: ClusterEngine, *items: str) -> list[str]:
    problems = engine.read(items).problems
    assert all(problem.reason in REASONS and problem.detail for problem in problems)
    return [problem.reason for problem in problems]


def right_values(engine: ClusterEngine, parameter: EngineParameter) -> list[str]:
    by_type = {"integer": "1", "float": "0.5", "json": "{}"}
    flag = engine.flags.by_name[parameter.name]
    value = (parameter.allowed_values or [by_type.get(parameter.type, "text")])[0]
    if flag.form:
        value = "exps=CPU" if flag.form == "buffers" else "1"
    return [value] * (flag.num_values or 1)


def test_the_engines_are_those_of_the_images() -> None:
    folders = {path.parent.name.replace("exo-engine", "exo") for path in DOCKERFILES.glob("*/Doc*")}
    assert set(ENGINES) == folders
    assert engines_on("cpu") == ("exo", "llama-cpp")
    assert engines_on("gpu") == ENGINES


def test_charts_and_builds_of_images_know_every_engine() -> None:
    release = json.loads((CHARTS / "inference-deployment" / "values.schema.json").read_text())
    assert set(release["properties"]["engine"]["properties"]["name"]["enum"]) == set(ENGINES)
    plane = json.loads((CHARTS / "exo-inference" / "values.schema.json").read_text())
    of_release = plane["definitions"]["deploymentValues"]["properties"]["engine"]["properties"]
    assert set(of_release["name"]["enum"]) == set(ENGINES)
    of_platform = plane["properties"]["platform"]["properties"]
    assert set(of_platform["engineValues"]["properties"]) == set(ENGINES)
    built = {image.name.removeprefix("exo-") for image in images.IMAGES}
    assert built - {"inference"} == {name.replace("exo", "engine") for name in ENGINES}


@pytest.mark.parametrize(
    ("page", "row"),
    [
        ("docs/concepts/parameters.md", r"^\| `{name}` \| \S*`\S*{name}.json` "),
        ("docs/reference/plan.md", r"^\| `inference_engine` .*`{name}`"),
        ("docs/reference/resources.md", r"^\| `spec.engine.name` .*`{name}`"),
        ("engine-images/README.md", r"^\| `{folder}/` \|"),
        ("charts/inference-deployment/values.yaml", r"# Engine by its catalogue name:.*\b{name}\b"),
    ],
)
def test_pages_that_list_engines_list_them_all(page: str, row: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    rows = {
        name: row.format(name=name, folder=name.replace("exo", "exo-engine")) for name in ENGINES
    }
    assert [name for name in rows if re.search(rows[name], text, re.MULTILINE) is None] == []


def test_the_page_of_flags_names_every_engine_that_runs_on_clusters_alone() -> None:
    text = (ROOT / "docs/concepts/parameters.md").read_text("utf-8")
    found = re.search(r"^(.*) run on Kubernetes alone,", text, re.MULTILINE)
    assert found is not None
    assert set(re.split(", | and ", found[1])) == {
        engine_of(name).title for name in CLUSTER_ENGINES
    }


@pytest.mark.parametrize("name", CLUSTER_ENGINES)
def test_an_engine_is_called_as_its_catalogue_calls_it(name: str) -> None:
    assert engine_of(name).title == engine_of(name).flags.engine


@pytest.mark.parametrize("name", CLUSTER_ENGINES)
def test_the_catalogue_is_of_the_release_that_the_image_is_made_from(name: str) -> None:
    text = (DOCKERFILES / name / "Dockerfile").read_text()
    found = re.search(r"^ARG BASE=\S+:(?:server-cuda-|v)?(\S+)$", text, re.MULTILINE)
    assert found is not None
    assert found[1] == engine_of(name).version


@pytest.mark.parametrize("name", CLUSTER_ENGINES)
def test_right_use_of_every_flag_is_accepted(name: str) -> None:
    engine = engine_of(name)
    for parameter in engine.parameters():
        values = right_values(engine, parameter)
        for flag in parameter.flags:
            uses = [(flag,)] if parameter.type == "boolean" else [(flag, *values)]
            if parameter.type != "boolean" and engine.dialect.attached and len(values) == 1:
                uses.append((f"{flag}={values[0]}",))
            for items in uses:
                assert reasons(engine, *items) == [], items


@pytest.mark.parametrize("name", CLUSTER_ENGINES)
def test_misuse_of_every_flag_is_refused_for_its_reason(name: str) -> None:
    engine = engine_of(name)
    for parameter in engine.parameters():
        flag, values = parameter.flags[0], right_values(engine, parameter)
        if parameter.type == "boolean":
            assert reasons(engine, f"{flag}=true") == ["boolean"]
            continue
        assert reasons(engine, flag) == ["missing"]
        twice = [] if engine.flags.by_name[parameter.name].repeatable else ["duplicate"]
        assert reasons(engine, flag, *values, flag, *values) == twice
        if parameter.allowed_values:
            assert reasons(engine, flag, "no-such-choice") == ["choice"]
        elif parameter.type in ("integer", "float"):
            assert reasons(engine, flag, *["many"] * len(values)) == ["type"]
        elif parameter.type == "json":
            assert reasons(engine, flag, "{") == ["json"]


@pytest.mark.parametrize("name", CLUSTER_ENGINES)
def test_what_the_platform_sets_is_refused_and_not_offered(name: str) -> None:
    engine = engine_of(name)
    known = engine.flags.by_name
    assert engine.owned.keys() <= known.keys()
    for owned in engine.owned:
        for flag in known[owned].spellings:
            assert reasons(engine, flag) == ["owned"], flag
    offered = {parameter.name for parameter in engine.parameters()}
    assert offered.isdisjoint(engine.owned)


@pytest.mark.parametrize(
    ("name", "flag", "meant"),
    [
        ("sglang", "--contxt-length", "--context-length"),
        ("sglang", "--max_running_requests", "--max-running-requests"),
        ("tensorrt-llm", "--max-batch-size", "--max_batch_size"),
        ("tgi", "--max-total-token", "--max-total-tokens"),
        ("llama-cpp", "--ctxsize", "--ctx-size"),
    ],
)
def test_a_flag_that_is_none_says_which_was_meant(name: str, flag: str, meant: str) -> None:
    (problem,) = engine_of(name).read([flag, "8"]).problems
    assert problem.reason == "unknown"
    assert engine_of(name).title in problem.detail
    assert problem.detail.endswith(f"did you mean {meant}?")


def test_llama_cpp_reads_flag_and_value_as_two_items_and_underscores_as_dashes() -> None:
    engine = engine_of("llama-cpp")
    (problem,) = engine.read(["--ctx-size=4096"]).problems
    assert problem.detail.endswith("give them as two items")
    assert reasons(engine, "--ctx_size", "4096", "-ngl", "all", "--seed", "-1") == []


def test_a_flag_with_several_values_takes_them_all() -> None:
    engine = engine_of("sglang")
    flags = ["--cuda-graph-bs", "1", "2", "4", "--tp-size", "2"]
    assert engine.read(flags).values == {"cuda-graph-bs": (1, 2, 4), "tensor-parallel-size": 2}
    assert reasons(engine, "--cuda-graph-bs", "1", "x") == ["type"]


@pytest.mark.parametrize(
    ("name", "flags", "count", "words"),
    [
        ("sglang", ("--tp", "2"), 4, "make 2, expected the 4"),
        ("sglang", ("--tp", "2", "--dp-size", "2"), 4, ""),
        ("sglang", ("--dp-size", "4", "--enable-dp-attention"), 4, ""),
        ("sglang", ("--pp-size", "2"), 4, "tensor 4 x pipeline 2) make 8"),
        ("sglang", ("--tp=0",), 4, "make 0"),
        ("tensorrt-llm", ("--tp_size=2", "--pp_size=2"), 4, ""),
        ("tensorrt-llm", ("--pp_size=3",), 2, "make 6, expected the 2"),
        ("tgi", (), 2, ""),
    ],
)
def test_parallel_sizes_make_up_the_gpus_of_a_replica(
    name: str, flags: tuple[str, ...], count: int, words: str
) -> None:
    engine = engine_of(name)
    problems = engine.check_sizes(engine.read(flags), count)
    assert bool(problems) == bool(words)
    assert all(words in problem.detail for problem in problems)


def test_another_release_is_refused_with_the_one_that_is_known() -> None:
    engine = engine_of("sglang")
    assert engine.read([], engine.version).problems == ()
    with pytest.raises(UnknownEngineRelease, match=r"0\.4\.1 are not known, only those of 0\.5"):
        engine.read([], "0.4.1")


def test_no_process_of_a_machine_is_one_of_them() -> None:
    replica = ReplicaCommand(Path("/m"), "m", "engine.sock", gpu_type="gpua5000", gpu_count=1)
    with pytest.raises(EngineNotInstalled, match="runs on a cluster only"):
        engine_of("tgi").command(replica)
    assert "exit code 3" in engine_of("tgi").diagnose(3, []).message

"""Which engine runs where, and how many GPUs one replica can have on a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.foreign_files.mutations import write_seed
from exo_inference.controller.admission import admit_create, admit_update
from exo_inference.controller.admission.architectures import Architectures, find_bundled
from exo_inference.controller.admission.bodies import read_update, read_wanted
from exo_inference.controller.admission.fit import make_subject
from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.admission.world import World
from exo_inference.controller.http.body import parse_object
from exo_inference.controller.http.views import view_deployment
from exo_inference.engines import engines_on, get_engine
from exo_inference.planner import cpu_as_gpu, find_gpu, find_model
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.platforms.replica_memory import HostRoom
from exo_inference.preflight import Subject, judge
from exo_inference.resources import DeploymentSpec, EngineRef, ModelSpec
from exo_inference.wire import CreateDeployment
from tests.controller import builders

GPU = InstanceTypeInfo(
    "gpua5000",
    total_gpus=16,
    free_gpus=16,
    gpu=find_gpu("gpua5000"),
    engine="vllm",
    engines=engines_on("gpu"),
    largest_node=8,
)
CPU = InstanceTypeInfo("cpu", 64, 64, engines=engines_on("cpu"), largest_node=32)
LOCAL_CPU = InstanceTypeInfo("cpu", 2, 2)


GGUF = "org/m1-GGUF:Q4_K_M"


def admit(*families: InstanceTypeInfo, source: str = "org/m1", **changes: Any) -> DeploymentSpec:
    model = builders.ready_model().model_copy(update={"spec": ModelSpec(source=source)})
    world = World((model,), (), families or (GPU, CPU))
    body = {"name": "chat", "model": {"name": source}, "gpu-type": "gpua5000", "gpu-count": 1}
    body |= {key.replace("_", "-"): value for key, value in changes.items()}
    wanted, issues = read_wanted(CreateDeployment, parse_object(json.dumps(body).encode()))
    return admit_create(wanted, world, issues).spec


def refusal(*families: InstanceTypeInfo, **changes: Any) -> tuple[int, str]:
    with pytest.raises(Refused) as refused:
        admit(*families, **changes)
    return refused.value.status_code, refused.value.text


def refuse_tiny(cpu: InstanceTypeInfo | None = None, **body: Any) -> Refused:
    """Return the refusal of a deployment of the built-in model on CPUs, a cluster's if no others are given."""
    source, model = "exo/tiny-chat", builders.ready_model()
    model = model.model_copy(update={"spec": ModelSpec(source=source)})
    cpu = cpu or replace(CPU, gpu=cpu_as_gpu(16 * 2**30))
    world = World((model,), (), (GPU, cpu), {source: find_bundled(source)})
    fields = {"name": "chat", "model": {"name": source}, "gpu-type": "cpu", **body}
    wanted, issues = read_wanted(CreateDeployment, fields)
    with pytest.raises(Refused) as refused:
        admit_create(wanted, world, issues)
    return refused.value


@pytest.mark.parametrize("engine", engines_on("gpu"))
def test_every_engine_can_be_asked_for_on_a_clusters_gpus(engine: str) -> None:
    source = GGUF if engine == "llama-cpp" else "org/m1"
    assert admit(inference_engine=engine, source=source).engine == EngineRef(name=engine)


@pytest.mark.parametrize("engine", [each for each in engines_on("gpu") if each != "llama-cpp"])
def test_a_gguf_file_is_served_by_an_engine_that_loads_it_alone(engine: str) -> None:
    status, text = refusal(inference_engine=engine, source=GGUF)
    assert (status, text.partition(";")[0]) == (
        412,
        f"{engine} loads no *.gguf files, and org/m1-GGUF:Q4_K_M is one",
    )
    assert "choose another engine: llama-cpp" in text


def test_files_that_are_no_gguf_files_are_refused_with_what_to_create() -> None:
    status, text = refusal(inference_engine="llama-cpp")
    assert status == 412
    assert text.startswith("llama-cpp loads *.gguf files, and org/m1 has none; choose another")
    assert text.endswith("create a model by the type of a GGUF file, such as ORG/NAME-GGUF:Q4_K_M")


def test_an_engine_for_gguf_is_refused_for_a_model_that_has_none() -> None:
    refused = refuse_tiny(**{"gpu-count": 1, "inference-engine": "llama-cpp"})
    assert (refused.status_code, refused.text) == (
        412,
        "llama-cpp loads *.gguf files, and exo/tiny-chat has none; choose another engine: exo, or create a model by the "
        "type of a GGUF file, such as ORG/NAME-GGUF:Q4_K_M",
    )


@pytest.mark.parametrize("lacks", [False, True])
def test_an_engine_that_reads_tokenizer_json_is_refused_for_a_model_without(lacks: bool) -> None:
    known = replace(find_bundled("exo/tiny-chat"), lacks_tokenizer_json=lacks)
    world = World((builders.ready_model(),), (), (GPU, CPU), {"org/m1": known})
    asked = {"name": "chat", "model": {"name": "org/m1"}, "gpu-count": 1, "replicas": 1}

    def told(gpu_type: str) -> str:
        wanted, issues = read_wanted(CreateDeployment, {**asked, "gpu-type": gpu_type})
        try:
            admit_create(wanted, world, issues)
        except Refused as refused:
            return refused.text
        return ""

    by_exo, by_vllm = told("cpu"), told("gpua5000")
    assert by_exo.startswith("exo-engine reads tokenizer.json, and org/m1 has none") == lacks
    assert "tokenizer" not in by_vllm


async def test_a_folder_says_whether_tokenizer_json_is_in_it(tmp_path: Path) -> None:
    write_seed(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    model = builders.ready_model()
    status = model.status.model_copy(update={"path": str(tmp_path)})
    model, looked_up = model.model_copy(update={"status": status}), Architectures()
    assert not (await looked_up.of_model(model)).lacks_tokenizer_json
    (tmp_path / "tokenizer.json").rename(tmp_path / "tokenizer.model")
    assert (await looked_up.of_model(model)).lacks_tokenizer_json


def test_more_gpus_than_the_engine_can_use_are_the_counts_fault() -> None:
    issues = refuse_tiny(**{"gpu-count": 2}).issues
    assert [issue.location for issue in issues if "runs on one processor" in issue.sentence] == [
        "$['gpu-count']"
    ]


def test_two_cpus_for_one_replica_are_refused_once() -> None:
    """On one machine, where all replicas share its cores."""
    room = HostRoom(64 * 2**30, 60 * 2**30, {}, num_cores=2)
    cpu = InstanceTypeInfo("cpu", 1, 1, gpu=cpu_as_gpu(16 * 2**30), room=room)
    refused = refuse_tiny(cpu, **{"gpu-count": 2})
    assert [issue.location for issue in refused.issues] == ["$['gpu-count']"]
    assert "a replica on the CPU has 1, which is its share of all cores" in refused.text


def test_flags_are_those_of_the_engine_that_is_asked_for() -> None:
    flags = ["--context-length", "8192"]
    spec = admit(inference_engine="sglang", inference_engine_parameters=flags)
    assert spec.engine_parameters == tuple(flags)
    status, text = refusal(inference_engine="tgi", inference_engine_parameters=flags)
    assert status == 400
    title = f"Text Generation Inference {get_engine('tgi').version}"
    assert f"there is no parameter --context-length of {title}" in text


@pytest.mark.parametrize(
    ("families", "engine", "words"),
    [
        ((LOCAL_CPU,), "sglang", "sglang does not run on cpu of this platform; possible: exo"),
        ((GPU, CPU), "tgi", "tgi does not run on cpu of this platform; possible: exo, llama-cpp"),
        ((GPU, CPU), "vlm", "inference-engine is 'vlm', expected one of: exo, llama-cpp"),
    ],
)
def test_an_engine_that_does_not_run_there_is_refused_with_those_that_do(
    families: tuple[InstanceTypeInfo, ...], engine: str, words: str
) -> None:
    assert refusal(*families, gpu_type="cpu", inference_engine=engine) == (400, words)


def test_llama_cpp_runs_on_cpus_of_a_cluster() -> None:
    spec = admit(gpu_type="cpu", inference_engine="llama-cpp", source=GGUF)
    assert spec.engine.name == "llama-cpp"


def test_the_version_is_a_release_of_the_engine() -> None:
    spec = admit(inference_engine="sglang", inference_engine_version=get_engine("sglang").version)
    assert spec.engine.version == "0.5.17"
    status, text = refusal(inference_engine="sglang", inference_engine_version="0.28.0")
    assert status == 400
    assert text.endswith("expected one of: 0.5.17")


def test_the_answer_has_no_release_of_vllm_for_another_engine() -> None:
    deployment = builders.deployment()
    spec = deployment.spec.model_copy(update={"engine": EngineRef(name="sglang")})
    shown = view_deployment(deployment.model_copy(update={"spec": spec}), {}, details=True)
    assert shown.inference_engine == f"sglang {get_engine('sglang').version}"
    assert shown.inference_engine_version is None


def test_where_no_node_takes_replicas_that_is_what_is_in_the_way() -> None:
    world = World((builders.ready_model(),), (), ())
    body = b'{"name": "chat", "model": {"name": "org/m1"}, "gpu-type": "cpu", "gpu-count": 1}'
    wanted, issues = read_wanted(CreateDeployment, parse_object(body))
    with pytest.raises(Refused) as refused:
        admit_create(wanted, world, issues)
    words = "gpu-type cannot be had: no node takes replicas at the moment"
    assert (refused.value.status_code, refused.value.text) == (412, words)


@pytest.mark.parametrize("engine", ["nonesuch", "sglang"])
def test_what_came_by_kubectl_with_whatever_engine_can_be_shown_and_updated(engine: str) -> None:
    deployment = builders.deployment()
    spec = deployment.spec.model_copy(update={"engine": EngineRef(name=engine, version="x")})
    present = deployment.model_copy(update={"spec": spec})
    assert view_deployment(present, {}, details=True).inference_engine == f"{engine} x"
    wanted, issues = read_update(parse_object(b'{"inference-engine-version": "9"}'))
    world = World((builders.ready_model(),), (present,), (CPU,))
    with pytest.raises(Refused):
        admit_update(wanted, present, world, issues)


def test_the_gpus_of_a_replica_are_those_of_one_node() -> None:
    assert admit(gpu_count=8).gpu_count == 8
    assert refusal(gpu_count=16) == (
        412,
        "no node has 16 gpua5000; the largest has 8; switch features.leaderWorkerSet on "
        "for models that span nodes",
    )


@pytest.mark.parametrize(
    ("engine", "count", "words"),
    [
        ("vllm", 32, "the largest has 8, all together 16"),
        ("tgi", 16, "tgi cannot span nodes, sglang and vllm can"),
        ("sglang", 12, "a multiple of 8"),
        ("sglang", 16, ""),
        ("vllm", 16, ""),
    ],
)
def test_a_replica_spans_nodes_where_cluster_and_engine_can(
    engine: str, count: int, words: str
) -> None:
    spanning = replace(GPU, spans_nodes=True)
    if not words:
        assert admit(spanning, gpu_count=count, inference_engine=engine).gpu_count == count
        return
    status, text = refusal(spanning, gpu_count=count, inference_engine=engine)
    assert (status, words in text) == (412, True), text


def test_an_unknown_gpu_type_is_refused_with_those_that_are_known() -> None:
    assert refusal(gpu_type="h100") == (400, "gpu-type is 'h100', expected one of: cpu, gpua5000")


def spanning_spec(engine: str, *flags: str) -> DeploymentSpec:
    return DeploymentSpec(
        model="m",
        gpu_type="gpua5000",
        gpu_count=16,
        engine=EngineRef(name=engine),
        engine_parameters=flags,
    )


def test_vllm_over_nodes_is_planned_as_it_is_started() -> None:
    """Tensor parallelism within a node, pipeline stages over nodes, unless the user's flags say it."""
    spanning = replace(GPU, spans_nodes=True)

    def given(
        *own: str, engine: str = "vllm", family: InstanceTypeInfo = spanning
    ) -> dict[str, int]:
        subject = make_subject(spanning_spec(engine, *own), [family], {})
        assert subject.flags == own
        return dict(subject.given)

    assert given("--seed=1") == {"tensor-parallel-size": 8, "pipeline-parallel-size": 2}
    assert given("-tp=16", "-pp=1") == {}
    assert given(engine="sglang") == given(family=GPU) == {}
    sizes = {"tensor-parallel-size": 8, "pipeline-parallel-size": 2}
    model = find_model("meta-llama/Llama-3.1-8B-Instruct")
    asked = Subject(model, find_gpu("gpua5000"), 16, ("--seed=1",), given=sizes)
    plan = judge(asked, with_advice=False).plan
    assert plan is not None
    assert (plan.ranks.tensor, plan.ranks.pipeline) == (8, 2)
    assert plan.parameters.format() == [*(f"--{n}={v}" for n, v in sizes.items()), "--seed=1"]
    gpu = make_subject(spanning_spec("vllm"), [spanning], {}).gpu
    assert gpu is not None
    assert gpu.max_count == 16

"""The command line each engine is started with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from exo_adapter.engines import ENGINES
from exo_adapter.settings import Settings, SettingsError, read_settings
from exo_engine.arguments import ServeCommand, parse

from exo_inference.engines import ENGINES as KNOWN
from exo_inference.engines import engines_on, get_engine, vllm
from exo_inference.engines.cluster_engine import ClusterEngine
from exo_inference.engines.flags.catalogue import flags_of, listed_releases
from exo_inference.engines.flags.reader import read_vector

ROOT = Path(__file__).parents[2]


def settings(tmp_path: Path, **changes: str) -> Settings:
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").touch()
    environment = {
        "EXO_ENGINE": "vllm",
        "EXO_SERVED_MODEL_NAME": "chat",
        "EXO_MODEL_PATH": str(model),
        "EXO_PARAMETERS_FILE": str(tmp_path / "none.json"),
        **{f"EXO_{name.upper()}": value for name, value in changes.items()},
    }
    return read_settings(environment)


def command(engine: str, tmp_path: Path, **changes: str) -> list[str]:
    return ENGINES[engine].command(settings(tmp_path, engine=engine, **changes))


def value_of(flag: str, words: list[str]) -> str:
    assert words.count(flag) == 1
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("release", listed_releases())
def test_every_flag_that_vllm_gets_is_in_the_catalogue_of_every_release(
    tmp_path: Path, release: str
) -> None:
    words = command(
        "vllm", tmp_path, tensor_parallel_size="2", node_count="2", leader_address="leader-0"
    )
    assert words[:2] == ["vllm", "serve"]
    reading = read_vector(words[3:], flags_of(release), {})
    assert reading.problems == ()
    assert reading.values["tensor-parallel-size"] == 2
    assert reading.values["distributed-executor-backend"] == "ray"
    assert reading.values["served-model-name"] == ("chat",)
    assert (reading.values["host"], reading.values["port"]) == ("0.0.0.0", 8000)


def test_every_engine_has_a_command_line() -> None:
    assert ENGINES.keys() == set(KNOWN)


@pytest.mark.parametrize(
    "engine", [name for name in KNOWN if isinstance(get_engine(name), ClusterEngine)]
)
def test_every_flag_that_another_engine_gets_is_in_its_catalogue(
    tmp_path: Path, engine: str
) -> None:
    """And all of them are refused of users, but for sizes and layers, which users may set."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "one.gguf").touch()
    known = get_engine(engine)
    assert isinstance(known, ClusterEngine)
    nodes = {"node_count": "2", "leader_address": "leader-0"} if known.spans_nodes else {}
    words = command(engine, tmp_path, tensor_parallel_size="2", **nodes)
    flags = words[next(at for at, word in enumerate(words) if word.startswith("--")) :]
    reading = read_vector(flags, known.flags, {})
    assert reading.problems == ()
    given = reading.values.keys()
    sizes = known.sizes
    of_users = {"gpu-layers", *((sizes.tensor, sizes.pipeline) if sizes else ())}
    assert given - known.owned.keys() == given & of_users
    assert "port" in given


def test_admission_knows_what_the_images_run_on() -> None:
    devices = {name: engine.devices for name, engine in ENGINES.items()}
    assert engines_on("cpu") == tuple(sorted(n for n, found in devices.items() if "cpu" in found))
    assert engines_on("gpu") == tuple(sorted(n for n, found in devices.items() if "cuda" in found))
    for name, engine in ENGINES.items():
        assert get_engine(name).spans_nodes == engine.spans_nodes


def test_the_charts_autoscaler_asks_for_what_vllm_publishes() -> None:
    """And exo-engine, whose health check tells the adapter itself: its metrics are called as vLLM's."""
    template = ROOT / "charts/inference-deployment/templates/engine-horizontalpodautoscaler.yaml"
    usual = tuple(re.findall(r'"(\S+:num_\S+)"', template.read_text()))
    assert {name for name, each in ENGINES.items() if each.busy_metrics in (usual, ())} == {
        "exo",
        "vllm",
    }


def test_exo_engine_reads_the_flags_it_gets(tmp_path: Path) -> None:
    words = command("exo", tmp_path, device="cpu", drain_seconds="7")
    parsed = parse(words[1:], {})
    assert isinstance(parsed, ServeCommand)
    assert parsed.server.served_model_names == ("chat",)
    assert (parsed.server.host, parsed.server.port) == ("0.0.0.0", 8000)
    assert parsed.server.shutdown_timeout_seconds == 7


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", {"--tensor-parallel-size": "4", "--pipeline-parallel-size": "2"}),
        ("sglang", {"--tp-size": "4", "--pp-size": "2", "--served-model-name": "chat"}),
        ("tensorrt-llm", {"--tp_size": "4", "--pp_size": "2", "--served_model_name": "chat"}),
        ("tgi", {"--num-shard": "4", "--hostname": "0.0.0.0"}),
    ],
)
def test_sizes_and_names_go_to_the_engines_own_flags(
    tmp_path: Path, engine: str, flags: dict[str, str]
) -> None:
    words = command(engine, tmp_path, tensor_parallel_size="4", pipeline_parallel_size="2")
    assert {flag: value_of(flag, words) for flag in flags} == flags
    assert value_of("--port", words) == "8000"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_users_flags_come_last_so_that_they_win(tmp_path: Path, engine: str) -> None:
    parameters = tmp_path / "parameters.json"
    parameters.write_text('["--seed", "1 2", "--x=$HOME"]')
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "one.gguf").touch()
    words = command(engine, tmp_path, parameters_file=str(parameters))
    assert words[-3:] == ["--seed", "1 2", "--x=$HOME"]


def test_vllm_on_several_nodes_runs_on_ray(tmp_path: Path) -> None:
    nodes = {"node_count": "2", "leader_address": "leader-0"}
    leader = settings(tmp_path, **nodes)
    assert ENGINES["vllm"].before(leader) == ["ray", "start", "--head", "--port=6379"]
    worker = command("vllm", tmp_path, node_rank="1", **nodes)
    assert worker == ["ray", "start", "--address=leader-0:6379", "--block"]
    assert ENGINES["vllm"].before(settings(tmp_path)) is None


def test_sglang_on_several_nodes_names_the_leader(tmp_path: Path) -> None:
    words = command("sglang", tmp_path, node_count="2", node_rank="1", leader_address="leader-0")
    assert value_of("--nnodes", words) == "2"
    assert value_of("--node-rank", words) == "1"
    assert value_of("--dist-init-addr", words) == "leader-0:5000"
    assert "--nnodes" not in command("sglang", tmp_path)


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        pytest.param(["a.gguf"], "a.gguf", id="one file"),
        pytest.param(
            ["a-00002-of-00002.gguf", "a-00001-of-00002.gguf"], "a-00001-of-00002.gguf", id="parts"
        ),
        pytest.param(["mmproj-a.gguf", "a.gguf"], "a.gguf", id="with a projector"),
        pytest.param(["MMPROJ-a.gguf", "a.gguf"], "a.gguf", id="with a projector in capitals"),
        pytest.param(
            ["Q8_0/a-Q8_0-00001-of-00002.gguf", "Q8_0/a-Q8_0-00002-of-00002.gguf", "config.json"],
            "Q8_0/a-Q8_0-00001-of-00002.gguf",
            id="fetched by a type",
        ),
    ],
)
def test_llama_cpp_gets_the_file_of_the_model(
    tmp_path: Path, files: list[str], chosen: str
) -> None:
    (tmp_path / "model").mkdir()
    for name in files:
        (tmp_path / "model" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "model" / name).touch()
    assert value_of("--model", command("llama-cpp", tmp_path)).endswith(f"/{chosen}")


@pytest.mark.parametrize("files", [[], ["a.gguf", "b.gguf"]])
def test_llama_cpp_without_exactly_one_model_is_refused(tmp_path: Path, files: list[str]) -> None:
    (tmp_path / "model").mkdir()
    for name in files:
        (tmp_path / "model" / name).touch()
    with pytest.raises(SettingsError, match=f"found {len(files)}"):
        command("llama-cpp", tmp_path)


def test_tensorrt_llm_gets_a_file_that_turns_metrics_on(tmp_path: Path) -> None:
    path = Path(value_of("--config", command("tensorrt-llm", tmp_path)))
    assert "return_perf_metrics: true" in path.read_text()


def test_the_default_base_of_vllm_is_the_platforms_default_release() -> None:
    text = (ROOT / "engine-images" / "vllm" / "Dockerfile").read_text()
    assert f"ARG BASE=docker.io/vllm/vllm-openai:v{vllm.DEFAULT_VERSION}\n" in text

"""Each engine's command line and metrics: one entry per engine, and nothing else knows them.

Flags and metric names are those of the releases that the Dockerfiles name. Sources: vLLM's catalogue of
flags in `exo_inference/engines/catalog`; docs.sglang.io, "Server Arguments" and "Production Metrics";
TensorRT-LLM's `tensorrt_llm/commands/serve.py` and pull request 12545 (metrics); Text Generation
Inference's `docs/source/reference/launcher.md` and `metrics.md`; llama.cpp's `tools/server/README.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exo_adapter.settings import Settings, SettingsError

_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - a pod is reached at its own address
_RAY_PORT = 6379
_SGLANG_PORT = 5000


@dataclass(frozen=True)
class Engine:
    """What the adapter knows of an engine.

    Attributes:
        command: returns the argument vector of this pod.
        busy_metrics: gauges whose sum is the number of requests that run or wait; none for an engine whose health
            check itself says that it has work and does not get on.
        progress_metrics: counters that grow with every step, or at least with every token.
        metrics_path: of the engine's Prometheus metrics.
        health_path: answers 200 when the engine takes requests.
        measurements_path: answers what the start has measured; None for an engine that does not say.
        stall_seconds: how long no progress is tolerated where the container is not told.
        drains_itself: SIGTERM lets requests in flight end, so nobody needs to wait for them first.
        devices: where it can run.
        spans_nodes: a replica may be several pods.
        before: a program that must have run before, on nodes that serve; it returns at once.
    """

    command: Callable[[Settings], list[str]]
    busy_metrics: tuple[str, ...] = ()
    progress_metrics: tuple[str, ...] = ()
    metrics_path: str = "/metrics"
    health_path: str = "/health"
    measurements_path: str | None = None
    drains_itself: bool = False
    stall_seconds: int = 300
    devices: tuple[str, ...] = ("cuda",)
    spans_nodes: bool = False
    before: Callable[[Settings], list[str] | None] = lambda settings: None


def engine_of(settings: Settings) -> Engine:
    """Return the engine, having checked that it can do what is asked.

    Raises:
        SettingsError
    """
    engine = ENGINES.get(settings.engine)
    if engine is None:
        raise SettingsError(
            f"EXO_ENGINE is {settings.engine!r}; it must be one of {', '.join(ENGINES)}"
        )
    if settings.device not in engine.devices:
        raise SettingsError(f"{settings.engine} cannot run on {settings.device}")
    if settings.node_count > 1 and not engine.spans_nodes:
        raise SettingsError(f"{settings.engine} cannot span nodes; EXO_NODE_COUNT must be 1")
    return engine


def _exo(settings: Settings) -> list[str]:
    return [
        *("exo-engine", "serve", str(settings.model)),
        *("--served-model-name", settings.served_model_name),
        *("--host", _ALL_ADDRESSES, "--port", str(settings.http_port)),
        *("--device", settings.device),
        *("--shutdown-timeout", str(settings.drain_seconds)),
        *settings.parameters,
    ]


def _vllm(settings: Settings) -> list[str]:
    if settings.node_rank > 0:
        address = f"{settings.leader_address}:{_RAY_PORT}"
        return ["ray", "start", f"--address={address}", "--block"]
    return [
        *("vllm", "serve", str(settings.model)),
        *("--served-model-name", settings.served_model_name),
        *("--host", _ALL_ADDRESSES, "--port", str(settings.http_port)),
        *("--tensor-parallel-size", str(settings.tensor_parallel_size)),
        *("--pipeline-parallel-size", str(settings.pipeline_parallel_size)),
        *(("--distributed-executor-backend", "ray") if settings.node_count > 1 else ()),
        *settings.parameters,
    ]


def _ray_head(settings: Settings) -> list[str] | None:
    """Start Ray on the pod that serves; vLLM waits until all GPUs it needs have joined."""
    if settings.node_count == 1:
        return None
    return ["ray", "start", "--head", f"--port={_RAY_PORT}"]


def _sglang(settings: Settings) -> list[str]:
    nodes = (
        *("--nnodes", str(settings.node_count), "--node-rank", str(settings.node_rank)),
        *("--dist-init-addr", f"{settings.leader_address}:{_SGLANG_PORT}"),
    )
    return [
        *("python3", "-m", "sglang.launch_server", "--model-path", str(settings.model)),
        *("--served-model-name", settings.served_model_name),
        *("--host", _ALL_ADDRESSES, "--port", str(settings.http_port)),
        *("--tp-size", str(settings.tensor_parallel_size)),
        *("--pp-size", str(settings.pipeline_parallel_size)),
        "--enable-metrics",
        *(nodes if settings.node_count > 1 else ()),
        *settings.parameters,
    ]


def _tensorrt_llm(settings: Settings) -> list[str]:
    return [
        *("trtllm-serve", str(settings.model)),
        *("--served_model_name", settings.served_model_name),
        *("--host", _ALL_ADDRESSES, "--port", str(settings.http_port)),
        *("--tp_size", str(settings.tensor_parallel_size)),
        *("--pp_size", str(settings.pipeline_parallel_size)),
        # Metrics are off unless a file says so; the user's own --config replaces it.
        *("--config", str(Path(__file__).with_name("tensorrt_llm.yaml"))),
        *settings.parameters,
    ]


def _tgi(settings: Settings) -> list[str]:
    # It serves whatever `model` a client names, so there is no flag for the name.
    return [
        *("text-generation-launcher", "--model-id", str(settings.model)),
        *("--num-shard", str(settings.tensor_parallel_size)),
        *("--hostname", _ALL_ADDRESSES, "--port", str(settings.http_port)),
        *settings.parameters,
    ]


def _llama_cpp(settings: Settings) -> list[str]:
    layers = "0" if settings.device == "cpu" else "999"
    return [
        *("llama-server", "--model", str(_gguf_file(settings.model))),
        *("--alias", settings.served_model_name),
        *("--host", _ALL_ADDRESSES, "--port", str(settings.http_port)),
        *("--n-gpu-layers", layers, "--metrics"),
        *settings.parameters,
    ]


def _gguf_file(model: Path) -> Path:
    """Return the file to name: the only one, or the first of several parts.

    Raises:
        SettingsError
    """
    # A projector for pictures (mmproj) is a file of its own that the user names with --mmproj.
    files = sorted(path for path in model.rglob("*.gguf") if "mmproj" not in path.name.lower())
    first = [path for path in files if "-00001-of-" in path.name]
    chosen = first or files
    if len(chosen) != 1:
        raise SettingsError(
            f"there must be one model in GGUF format at {model}; found {len(chosen)}: "
            f"{', '.join(path.name for path in chosen[:8]) or 'none'}"
        )
    return chosen[0]


ENGINES = {
    "exo": Engine(
        command=_exo,
        measurements_path="/measurements",
        stall_seconds=60,  # a layer takes less, however long the step
        drains_itself=True,
        devices=("cpu", "cuda"),
    ),
    "vllm": Engine(
        command=_vllm,
        busy_metrics=("vllm:num_requests_running", "vllm:num_requests_waiting"),
        progress_metrics=("vllm:iteration_tokens_total_count", "vllm:generation_tokens_total"),
        spans_nodes=True,
        before=_ray_head,
    ),
    "sglang": Engine(
        command=_sglang,
        busy_metrics=("sglang:num_running_reqs", "sglang:num_queue_reqs"),
        progress_metrics=("sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
        spans_nodes=True,
    ),
    "tensorrt-llm": Engine(
        command=_tensorrt_llm,
        busy_metrics=("trtllm_num_requests_running", "trtllm_num_requests_waiting"),
        progress_metrics=("trtllm_prompt_tokens_total", "trtllm_generation_tokens_total"),
        metrics_path="/prometheus/metrics",
    ),
    "tgi": Engine(
        command=_tgi,
        busy_metrics=("tgi_batch_current_size", "tgi_queue_size"),
        progress_metrics=("tgi_batch_inference_count",),
    ),
    "llama-cpp": Engine(
        command=_llama_cpp,
        busy_metrics=("llamacpp:requests_processing", "llamacpp:requests_deferred"),
        progress_metrics=("llamacpp:n_decode_total", "llamacpp:prompt_tokens_total"),
        devices=("cpu", "cuda"),
    ),
}
"""Engines by the name in EXO_ENGINE."""

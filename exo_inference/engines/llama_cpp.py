"""llama.cpp, as `llama-server` starts it: what the platform sets of it.

Its parser reads flags and values as two items, and `_` for `-`; booleans take no value. Its memory is
planned by its own rules (`planner/llama_cpp`): GGUF files have number formats of their own, and the cache is as large
as the context from the start.
"""

from __future__ import annotations

from exo_inference.engines import cluster_engine
from exo_inference.engines.base import CPU, GPU
from exo_inference.engines.cluster_engine import ClusterEngine, GgufMeaning
from exo_inference.engines.flags.dialects import LLAMA_CPP
from exo_inference.engines.flags.problems import ParameterProblem, problem_of
from exo_inference.engines.flags.reader import Reading

_TOOLS = "tools would let whoever asks the model read and change files of the pod"
_ROUTER = "a deployment serves one model"

PLATFORM_OWNED = {
    "model": cluster_engine.MODEL,
    "alias": cluster_engine.MODEL_NAME,
    "model-url": cluster_engine.FILES,
    "docker-repo": cluster_engine.FILES,
    "hf-repo": cluster_engine.FILES,
    "hf-file": cluster_engine.FILES,
    "hf-token": "a Hub token is given when the model is created",
    "mmproj-url": cluster_engine.FILES,
    "spec-draft-hf": cluster_engine.FILES,
    "models-dir": _ROUTER,
    "models-preset": _ROUTER,
    "models-max": _ROUTER,
    "models-autoload": _ROUTER,
    "host": cluster_engine.SOCKET,
    "port": cluster_engine.SOCKET,
    "reuse-port": cluster_engine.SOCKET,
    "api-prefix": cluster_engine.GATEWAY,
    "ssl-key-file": cluster_engine.GATEWAY,
    "ssl-cert-file": cluster_engine.GATEWAY,
    "api-key": cluster_engine.KEYS,
    "api-key-file": cluster_engine.KEYS,
    "metrics": cluster_engine.METRICS,
    "rpc": cluster_engine.NODES,
    "tools": _TOOLS,
    "tools-runtime": _TOOLS,
    "mcp-servers-config": _TOOLS,
    "mcp-servers-json": _TOOLS,
    "agent": _TOOLS,
}


class LlamaCpp(ClusterEngine):
    """llama.cpp, whose flags say which GPUs hold what by their places, not by counts."""

    def check_sizes(self, reading: Reading, gpu_count: int) -> list[ParameterProblem]:
        """Return what is wrong with the places on a replica's GPUs that flags name."""
        found = reading.values
        shares, only = found.get("tensor-split"), found.get("main-gpu", 0)
        wrong = {}
        if shares is not None and not sum(shares[:gpu_count]):
            wrong["tensor-split"] = "gives none of these GPUs a share, expected one that does"
        if found.get("split-mode") == "none" and only >= gpu_count:
            wrong["main-gpu"] = f"is {only}, expected a whole number from 0 to {gpu_count - 1}"
        uses = [(reading.find(name), finding) for name, finding in wrong.items()]
        return [
            problem_of(use, "model", f"{use.spelling} {finding}; change it, or leave it out")
            for use, finding in uses
            if use is not None
        ]


ENGINE = LlamaCpp(
    name="llama-cpp",
    owned=PLATFORM_OWNED,
    dialect=LLAMA_CPP,
    devices=(CPU, GPU),
    gguf=GgufMeaning(
        unknown=frozenset(
            {
                "lora",
                "lora-scaled",
                "control-vector",
                "control-vector-scaled",
                "mmproj",
                "embedding",
                "rerank",
                "pooling",
                "override-tensor",
                "override-kv",
                "device",
                "moe-cache-mib",
                "n-cpu-ffn",
                "lazy-mode",
                "backend-sampling",
                "spec-type",
                "spec-default",
                "spec-draft-model",
                "spec-draft-type-k",
                "spec-draft-type-v",
                "spec-draft-override-tensor",
                "spec-draft-cpu-moe",
                "spec-draft-n-cpu-moe",
                "spec-draft-n-max",
                "spec-draft-backend-sampling",
                "spec-draft-device",
                "spec-draft-ngl",
            }
        ),
        unknown_values={"split-mode": frozenset({"row", "tensor"})},
    ),
)

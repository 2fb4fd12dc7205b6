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

ENGINE = ClusterEngine(
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

"""Text Generation Inference: what the platform sets of it, and what is known of its memory.

Its parser is Rust's clap: `--flag=value` is read, `_` is not `-`, booleans take no value.
"""

from __future__ import annotations

from exo_inference.engines import cluster_engine
from exo_inference.engines.cluster_engine import ClusterEngine, VllmMeaning

PLATFORM_OWNED = {
    "model-id": cluster_engine.MODEL,
    "revision": cluster_engine.PINNED,
    "tokenizer-config-path": "the tokenizer comes with the model",
    "huggingface-hub-cache": cluster_engine.FILES,
    "weights-cache-override": cluster_engine.FILES,
    "hostname": cluster_engine.SOCKET,
    "port": cluster_engine.SOCKET,
    "prometheus-port": cluster_engine.SOCKET,
    "api-key": cluster_engine.KEYS,
    "ngrok": cluster_engine.GATEWAY,
    "ngrok-authtoken": cluster_engine.GATEWAY,
    "ngrok-edge": cluster_engine.GATEWAY,
    "num-shard": cluster_engine.GPU_COUNT,
    "sharded": cluster_engine.GPU_COUNT,
    "master-addr": cluster_engine.NODES,
    "master-port": cluster_engine.NODES,
    "env": "it prints the environment and ends",
}

ENGINE = ClusterEngine(
    name="tgi",
    owned=PLATFORM_OWNED,
    meaning=VllmMeaning(
        settings={
            "max-total-tokens": "max_model_len",
            "cuda-memory-fraction": "gpu_memory_utilization",
            "kv-cache-dtype": "kv_cache_dtype",
            "dtype": "dtype",
        },
        values={"fp8_e4m3fn": "fp8_e4m3"},
        others=frozenset({"quantize", "speculate"}),
    ),
)

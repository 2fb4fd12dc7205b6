"""Text Generation Inference: what the platform sets of it, and what is known of its memory.

Its parser is Rust's clap: `--flag=value` is read, `_` is not `-`, booleans take no value.
"""

from __future__ import annotations

from exo_inference.engines import imaged
from exo_inference.engines.imaged import ImagedEngine, VllmMeaning

PLATFORM_OWNED = {
    "model-id": imaged.MODEL,
    "revision": imaged.PINNED,
    "tokenizer-config-path": "the tokenizer comes with the model",
    "huggingface-hub-cache": imaged.FILES,
    "weights-cache-override": imaged.FILES,
    "hostname": imaged.SOCKET,
    "port": imaged.SOCKET,
    "prometheus-port": imaged.SOCKET,
    "api-key": imaged.KEYS,
    "ngrok": imaged.GATEWAY,
    "ngrok-authtoken": imaged.GATEWAY,
    "ngrok-edge": imaged.GATEWAY,
    "num-shard": imaged.GPU_COUNT,
    "sharded": imaged.GPU_COUNT,
    "master-addr": imaged.NODES,
    "master-port": imaged.NODES,
    "env": "it prints the environment and ends",
}

ENGINE = ImagedEngine(
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

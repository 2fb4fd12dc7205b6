"""SGLang: what the platform sets of it, and which of its flags mean for memory what vLLM's mean.

Its parser is Python's argparse: `--flag=value` is read, `_` is not `-`, booleans take no value.
"""

from __future__ import annotations

from exo_inference.engines import imaged
from exo_inference.engines.imaged import ImagedEngine, Sizes, VllmMeaning

PLATFORM_OWNED = {
    "model-path": imaged.MODEL,
    "served-model-name": imaged.MODEL_NAME,
    "tokenizer-path": "the tokenizer comes with the model",
    "revision": imaged.PINNED,
    "download-dir": imaged.FILES,
    "config": imaged.IN_DEPLOYMENT,
    "host": imaged.SOCKET,
    "port": imaged.SOCKET,
    "grpc-mode": imaged.SOCKET,
    "fastapi-root-path": imaged.GATEWAY,
    "api-key": imaged.KEYS,
    "admin-api-key": imaged.KEYS,
    "enable-metrics": imaged.METRICS,
    "device": imaged.GPU_TYPE,
    "base-gpu-id": imaged.GPU_COUNT,
    "gpu-id-step": imaged.GPU_COUNT,
    "nnodes": imaged.NODES,
    "node-rank": imaged.NODES,
    "dist-init-addr": imaged.NODES,
    "nccl-port": imaged.NODES,
    "disaggregation-mode": imaged.DISAGGREGATION,
    "disaggregation-bootstrap-port": imaged.DISAGGREGATION,
    "encoder-only": imaged.DISAGGREGATION,
    "language-only": imaged.DISAGGREGATION,
    "encoder-urls": imaged.DISAGGREGATION,
}

ENGINE = ImagedEngine(
    name="sglang",
    owned=PLATFORM_OWNED,
    spans_nodes=True,
    sizes=Sizes(
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "data-parallel-size",
        "enable-dp-attention",
    ),
    meaning=VllmMeaning(
        settings={
            "context-length": "max_model_len",
            "max-running-requests": "max_num_seqs",
            "mem-fraction-static": "gpu_memory_utilization",
            "kv-cache-dtype": "kv_cache_dtype",
            "dtype": "dtype",
            "tensor-parallel-size": "tensor_parallel_size",
            "pipeline-parallel-size": "pipeline_parallel_size",
            "data-parallel-size": "data_parallel_size",
        },
        values={"bf16": "bfloat16"},
        others=frozenset(
            {
                "quantization",
                "torchao-config",
                "modelopt-quant",
                "cpu-offload-gb",
                "offload-group-size",
                "kt-weight-path",
                "expert-parallel-size",
                "enable-dp-attention",
                "json-model-override-args",
                "speculative-algorithm",
                "fp4_e2m1",
            }
        ),
    ),
)

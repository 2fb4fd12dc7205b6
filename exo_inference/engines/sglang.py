"""SGLang: what the platform sets of it, and what its flags mean for memory (`planner/static` has the rules).

Its parser is Python's argparse: `--flag=value` is read, `_` is not `-`, booleans take no value.
"""

from __future__ import annotations

from exo_inference.engines import cluster_engine
from exo_inference.engines.cluster_engine import ClusterEngine, Sizes, VllmMeaning
from exo_inference.engines.flags.dialects import SGLANG

PLATFORM_OWNED = {
    "model-path": cluster_engine.MODEL,
    "served-model-name": cluster_engine.MODEL_NAME,
    "tokenizer-path": "the tokenizer comes with the model",
    "revision": cluster_engine.PINNED,
    "download-dir": cluster_engine.FILES,
    "config": cluster_engine.IN_DEPLOYMENT,
    "host": cluster_engine.SOCKET,
    "port": cluster_engine.SOCKET,
    "grpc-mode": cluster_engine.SOCKET,
    "fastapi-root-path": cluster_engine.GATEWAY,
    "api-key": cluster_engine.KEYS,
    "admin-api-key": cluster_engine.KEYS,
    "enable-metrics": cluster_engine.METRICS,
    "device": cluster_engine.GPU_TYPE,
    "base-gpu-id": cluster_engine.GPU_COUNT,
    "gpu-id-step": cluster_engine.GPU_COUNT,
    "nnodes": cluster_engine.NODES,
    "node-rank": cluster_engine.NODES,
    "dist-init-addr": cluster_engine.NODES,
    "nccl-port": cluster_engine.NODES,
    "disaggregation-mode": cluster_engine.DISAGGREGATION,
    "disaggregation-bootstrap-port": cluster_engine.DISAGGREGATION,
    "encoder-only": cluster_engine.DISAGGREGATION,
    "language-only": cluster_engine.DISAGGREGATION,
    "encoder-urls": cluster_engine.DISAGGREGATION,
}

ENGINE = ClusterEngine(
    name="sglang",
    owned=PLATFORM_OWNED,
    dialect=SGLANG,
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
            "chunked-prefill-size": "max_num_batched_tokens",
            "max-total-tokens": "num_gpu_blocks_override",
            "page-size": "block_size",
            "mamba-ssm-dtype": "mamba_ssm_cache_dtype",
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
                "quantize-and-serve",
                "rl-quant-profile",
                "torchao-config",
                "modelopt-quant",
                "modelopt-checkpoint-restore-path",
                "cpu-offload-gb",
                "offload-group-size",
                "kt-weight-path",
                "expert-parallel-size",
                "moe-data-parallel-size",
                "moe-dense-tp-size",
                "ep-num-redundant-experts",
                "enable-eplb",
                "enable-dp-attention",
                "attention-context-parallel-size",
                "json-model-override-args",
                "decrypted-config-file",
                "speculative-algorithm",
                "moe-a2a-backend",
                "enable-dsa-prefill-context-parallel",
                "enable-lora",
                "lora-paths",
                "is-embedding",
                "dllm-algorithm",
                "multi-item-scoring-delimiter",
            }
        ),
        other_values={
            "load-format": frozenset({"bitsandbytes", "gguf"}),
            "model-impl": frozenset({"transformers", "mindspore"}),
        },
        of_traits={
            "windows": frozenset(
                {
                    "swa-full-tokens-ratio",
                    "disable-hybrid-swa-memory",
                    "disable-radix-cache",
                    "enable-hierarchical-cache",
                }
            ),
            "states": frozenset(
                {
                    "disable-radix-cache",
                    "disable-overlap-schedule",
                    "mamba-full-memory-ratio",
                    "mamba-scheduler-strategy",
                    "max-mamba-cache-size",
                    "max-total-tokens",
                }
            ),
            "images": frozenset({"mm-enable-dp-encoder"}),
            "text-first": frozenset({"enable-multimodal"}),
            "index": frozenset({"dsa-prefill-backend", "dsa-decode-backend"}),
        },
        of_share=frozenset(
            {
                "cuda-graph-max-bs",
                "cuda-graph-bs",
                "disable-cuda-graph",
                "disable-piecewise-cuda-graph",
                "enforce-piecewise-cuda-graph",
                "piecewise-cuda-graph-max-tokens",
                "piecewise-cuda-graph-tokens",
                "enable-torch-compile",
                "enable-symm-mem",
                "enable-two-batch-overlap",
            }
        ),
    ),
)

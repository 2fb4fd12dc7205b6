"""TensorRT-LLM, as `trtllm-serve` starts it: what the platform sets, and what is known of its memory.

Its parser is click: `--flag=value` is read, names have `_` and not `-`, booleans take no value.
"""

from __future__ import annotations

from exo_inference.engines import cluster_engine
from exo_inference.engines.cluster_engine import ClusterEngine, Sizes, VllmMeaning

PLATFORM_OWNED = {
    "served_model_name": cluster_engine.MODEL_NAME,
    "tokenizer": "the tokenizer comes with the model",
    "revision": cluster_engine.PINNED,
    "host": cluster_engine.SOCKET,
    "port": cluster_engine.SOCKET,
    "grpc": cluster_engine.SOCKET,
    "config": "the platform's own file switches metrics on; flags are given in the deployment",
    "gpus_per_node": cluster_engine.GPU_COUNT,
    "metadata_server_config_file": cluster_engine.DISAGGREGATION,
    "server_role": cluster_engine.DISAGGREGATION,
    "disagg_cluster_uri": cluster_engine.DISAGGREGATION,
}

ENGINE = ClusterEngine(
    name="tensorrt-llm",
    owned=PLATFORM_OWNED,
    sizes=Sizes("tensor_parallel_size", "pipeline_parallel_size"),
    meaning=VllmMeaning(
        settings={
            "max_seq_len": "max_model_len",
            "max_batch_size": "max_num_seqs",
            "max_num_tokens": "max_num_batched_tokens",
            "tensor_parallel_size": "tensor_parallel_size",
            "pipeline_parallel_size": "pipeline_parallel_size",
        },
        values={},
        others=frozenset(
            {
                "backend",
                "context_parallel_size",
                "moe_expert_parallel_size",
                "moe_cluster_parallel_size",
                "free_gpu_memory_fraction",
            }
        ),
    ),
)

"""TensorRT-LLM, as `trtllm-serve` starts it: what the platform sets, and what is known of its memory.

Its parser is click: `--flag=value` is read, names have `_` and not `-`, booleans take no value.
"""

from __future__ import annotations

from exo_inference.engines import imaged
from exo_inference.engines.imaged import ImagedEngine, Sizes, VllmMeaning

PLATFORM_OWNED = {
    "served_model_name": imaged.MODEL_NAME,
    "tokenizer": "the tokenizer comes with the model",
    "revision": imaged.PINNED,
    "host": imaged.SOCKET,
    "port": imaged.SOCKET,
    "grpc": imaged.SOCKET,
    "config": "the platform's own file switches metrics on; flags are given in the deployment",
    "gpus_per_node": imaged.GPU_COUNT,
    "metadata_server_config_file": imaged.DISAGGREGATION,
    "server_role": imaged.DISAGGREGATION,
    "disagg_cluster_uri": imaged.DISAGGREGATION,
}

ENGINE = ImagedEngine(
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

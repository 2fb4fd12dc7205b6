"""SGLang's flags as the planner knows them: what it calls those of vLLM, and those that no rule here has."""

from __future__ import annotations

FLAGS = {
    "gpu-memory-utilization": "mem-fraction-static",
    "max-model-len": "context-length",
    "max-num-seqs": "max-running-requests",
    "max-num-batched-tokens": "chunked-prefill-size",
    "enforce-eager": "disable-cuda-graph",
    "enable-expert-parallel": "expert-parallel-size",
    "num-gpu-blocks-override": "max-total-tokens",
    "block-size": "page-size",
    "mamba-ssm-cache-dtype": "mamba-ssm-dtype",
}
"""By vLLM's names."""

UNPLANNED = frozenset({
    "cpu_offload_gb", "disable_hybrid_swa_memory", "disable_radix_cache", "enable_dp_attention", "enable_lora", "ep_size",
    "expert_parallel_size", "lora_paths", "mamba_full_memory_ratio", "max_mamba_cache_size", "speculative_algorithm", "swa_full_tokens_ratio",
})  # fmt: skip
"""They change what memory is taken; `_` for `-`."""

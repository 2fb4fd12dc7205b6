"""What exo-engine's compiled kernels compute on a processor, which `engine_rules.py` puts into its row."""

from __future__ import annotations

from exo_inference.planner.processor.kernels import ProcessorKernels, TorchPart

EXO_KERNELS = ProcessorKernels(
    dtype="bfloat16",
    quantizations=frozenset({"int8", "int4", "int4_per_group_64", "int4_per_group_128"}),
    cache_types=frozenset({"auto", "bfloat16", "int8"}),  # exo_engine/attention/cpu.py
    input_multiple=2,  # exo_engine/weight_formats/plain.py and layers/embedding.py
    most_int8_inputs=2**16,  # exo_engine/weight_formats/int8.py
    backend="cpu",
    other_backends=frozenset({"auto", "reference"}),
    head_multiple=16,  # exo_engine/kernels/pages.py, as the next two
    longest_head=256,
    block_multiple=16,
    by_torch={
        "deepseek_v2": TorchPart("latent attention and shared experts"),
        "deepseek_v3": TorchPart("latent attention and shared experts"),
        "gemma2": TorchPart("norms and gates", most_times=1.7),
        "gemma3_text": TorchPart("norms and gates", most_times=1.7),
        "gemma4_text": TorchPart("norms, gates and embeddings of layers"),
        "gpt_oss": TorchPart("gates and biases of experts"),
        "qwen3_5_text": TorchPart("linear attention"),
        "qwen3_next": TorchPart("linear attention and shared experts"),
    },
)
"""What `is_computed_by_kernels` of exo_engine/models/decoder.py says. Of random models with 16 layers of 1,024 hidden numbers a
step took, by that of the same estimate for Llama or Qwen3-MoE, with one request and with 16: Gemma 2 and 3 1.2 and 1.6 times as
long, Gemma 4 1.4 to 2.6, gpt-oss 2.0 and 1.5, Qwen3.5 3.8 and 3.4, Qwen3-Next 3.4 and 4.0, DeepSeek-V2 4.0 and 2.9."""

"""Buffers that llama.cpp reserves for models of many kinds, against what is planned.

The figures are those that a build of 0c1e5709 prints for files with all tensors of a model and no values, loaded without
memory for them onto a remote device of one backend; that backend has no tensors of its own in a graph, as CUDA's has for
caches in blocks.
"""

from __future__ import annotations

import pytest

from exo_inference.planner import find_model
from exo_inference.planner.gpu_catalog import MIB
from exo_inference.planner.llama_cpp.compute import host_compute_bytes, output_bytes
from exo_inference.planner.llama_cpp.setting import LlamaSetting, resolve
from exo_inference.planner.llama_cpp.sizes import measure
from exo_inference.planner.model.requantize import with_quantization

MODELS = {
    "qwen3-4b": "Qwen/Qwen3-4B",
    "llama8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama70": "meta-llama/Llama-3.3-70B-Instruct",
    "q30": "Qwen/Qwen3-30B-A3B",
    "oss": "openai/gpt-oss-20b",
    "g27": "google/gemma-3-27b-it",
    "g1": "google/gemma-3-1b-it",
    "q27": "Qwen/Qwen3.6-27B",
    "q35": "Qwen/Qwen3.5-35B-A3B",
    "dsl": "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct",
    "ds3": "deepseek-ai/DeepSeek-V3",
    "smol": "HuggingFaceTB/SmolLM2-135M-Instruct",
}
PRINTED = [
    ("qwen3-4b", 4096, 512, 1, False, True, False, 576.0, 0, 79.01, 14.01, 0.58),
    ("qwen3-4b", 32768, 512, 4, True, True, False, 4608.0, 0, 107.01, 42.01, 2.32),
    ("qwen3-4b", 32768, 512, 1, False, False, False, 4608.0, 0, 2142.01, 78.01, 0.58),
    ("qwen3-4b", 32768, 2048, 1, False, True, False, 4608.0, 0, 428.04, 168.05, 0.58),
    ("qwen3-4b", 32768, 512, 1, False, True, True, 4608.0, 0, 301.75, 42.01, 0.58),
    ("qwen3-4b", 131072, 512, 1, False, True, False, 18432.0, 0, 203.01, 138.01, 0.58),
    ("llama8b", 4096, 512, 1, False, True, False, 512.0, 0, 112.01, 20.01, 0.49),
    ("llama8b", 32768, 512, 4, True, True, False, 4096.0, 0, 140.01, 48.01, 1.96),
    ("llama8b", 32768, 512, 1, False, False, False, 4096.0, 0, 2148.01, 84.01, 0.49),
    ("llama8b", 32768, 2048, 1, False, True, False, 4096.0, 0, 560.04, 192.05, 0.49),
    ("llama8b", 32768, 512, 1, False, True, True, 4096.0, 0, 258.5, 48.01, 0.49),
    ("llama8b", 131072, 512, 1, False, True, False, 16384.0, 0, 236.01, 144.01, 0.49),
    ("llama70", 4096, 512, 1, False, True, False, 1280.0, 0, 220.01, 36.01, 0.49),
    ("llama70", 32768, 512, 4, True, True, False, 10240.0, 0, 248.01, 64.01, 1.96),
    ("llama70", 32768, 512, 1, False, False, False, 10240.0, 0, 4228.01, 100.01, 0.49),
    ("llama70", 32768, 2048, 1, False, True, False, 10240.0, 0, 992.04, 256.05, 0.49),
    ("llama70", 32768, 512, 1, False, True, True, 10240.0, 0, 266.5, 64.01, 0.49),
    ("llama70", 131072, 512, 1, False, True, False, 40960.0, 0, 344.01, 160.01, 0.49),
    ("q30", 4096, 512, 1, False, True, False, 384.0, 0, 88.01, 12.01, 0.58),
    ("q30", 32768, 512, 4, True, True, False, 3072.0, 0, 116.01, 40.01, 2.32),
    ("q30", 32768, 512, 1, False, False, False, 3072.0, 0, 2138.01, 74.01, 0.58),
    ("q30", 32768, 2048, 1, False, True, False, 3072.0, 0, 464.04, 160.05, 0.58),
    ("q30", 32768, 512, 1, False, True, True, 3072.0, 0, 300.75, 40.01, 0.58),
    ("q30", 131072, 512, 1, False, True, False, 12288.0, 0, 212.01, 136.01, 0.58),
    ("oss", 4096, 512, 1, False, True, False, 114.0, 0, 91.52, 16.02, 0.77),
    ("oss", 32768, 512, 4, True, True, False, 792.0, 0, 119.77, 44.27, 3.07),
    ("oss", 32768, 512, 1, False, False, False, 786.0, 0, 4192.76, 80.76, 0.77),
    ("oss", 32768, 2048, 1, False, True, False, 822.0, 0, 484.07, 182.08, 0.77),
    ("oss", 32768, 512, 1, False, True, True, 786.0, 0, 404.0, 44.02, 0.77),
    ("oss", 131072, 512, 1, False, True, False, 3090.0, 0, 215.52, 140.02, 0.77),
    ("g27", 4096, 512, 1, False, True, False, 944.0, 0, 160.52, 26.52, 1.0),
    ("g27", 32768, 512, 4, True, True, False, 4432.0, 0, 191.52, 57.52, 4.0),
    ("g27", 32768, 512, 1, False, False, False, 3184.0, 0, 2168.01, 104.01, 1.0),
    ("g27", 32768, 2048, 1, False, True, False, 3808.0, 0, 760.07, 224.08, 1.0),
    ("g27", 32768, 512, 1, False, True, True, 3184.0, 0, 522.5, 54.52, 1.0),
    ("g27", 131072, 512, 1, False, True, False, 10864.0, 0, 284.52, 150.52, 1.0),
    ("q27", 4096, 512, 1, False, True, False, 256.0, 149.62, 126.02, 24.02, 0.95),
    ("q27", 32768, 512, 4, True, True, False, 2048.0, 598.5, 154.02, 52.02, 3.79),
    ("q27", 32768, 512, 1, False, False, False, 2048.0, 149.62, 1660.01, 88.01, 0.95),
    ("q27", 32768, 2048, 1, False, True, False, 2048.0, 149.62, 616.06, 208.07, 0.95),
    ("q27", 32768, 512, 1, False, True, True, 2048.0, 149.62, 505.0, 52.02, 0.95),
    ("q27", 131072, 512, 1, False, True, False, 8192.0, 149.62, 250.02, 148.02, 0.95),
    ("q35", 4096, 512, 1, False, True, False, 80.0, 62.81, 72.02, 12.02, 0.95),
    ("q35", 32768, 512, 4, True, True, False, 640.0, 251.25, 100.02, 40.02, 3.79),
    ("q35", 32768, 512, 1, False, False, False, 640.0, 62.81, 1126.01, 74.01, 0.95),
    ("q35", 32768, 2048, 1, False, True, False, 640.0, 62.81, 400.06, 160.07, 0.95),
    ("q35", 32768, 512, 1, False, True, True, 640.0, 62.81, 493.0, 40.02, 0.95),
    ("q35", 131072, 512, 1, False, True, False, 2560.0, 62.81, 196.02, 136.02, 0.95),
    ("dsl", 4096, 512, 1, False, True, False, 121.5, 0, 80.13, 12.01, 0.39),
    ("dsl", 32768, 512, 4, True, True, False, 972.0, 0, 108.13, 40.01, 1.56),
    ("dsl", 32768, 2048, 1, False, True, False, 972.0, 0, 432.52, 160.03, 0.39),
    ("dsl", 131072, 512, 1, False, True, False, 3888.0, 0, 204.13, 136.01, 0.39),
    ("ds3", 4096, 512, 1, False, True, False, 274.5, 0, 382.01, 32.01, 0.49),
    ("ds3", 32768, 512, 4, True, True, False, 2196.0, 0, 410.01, 60.01, 1.97),
    ("ds3", 32768, 512, 1, False, False, False, 2196.0, 0, 8634.01, 92.01, 0.49),
    ("ds3", 32768, 2048, 1, False, True, False, 2196.0, 0, 1640.02, 240.03, 0.49),
    ("ds3", 131072, 512, 1, False, True, False, 8784.0, 0, 506.01, 156.01, 0.49),
    ("smol", 4096, 512, 1, False, True, False, 90.0, 0, 16.38, 6.26, 0.19),
    ("smol", 32768, 512, 4, True, True, False, 720.0, 0, 44.38, 34.26, 0.75),
    ("smol", 32768, 512, 1, False, False, False, 720.0, 0, 645.26, 67.01, 0.19),
    ("smol", 32768, 2048, 1, False, True, False, 720.0, 0, 177.54, 137.05, 0.19),
    ("smol", 131072, 512, 1, False, True, False, 2880.0, 0, 140.38, 130.26, 0.19),
]  # fmt: skip
"""Model, --ctx-size, --ubatch-size, --parallel, --kv-unified, --flash-attn, logits of all tokens; then MiB of the cache, of
states, of the GPU's compute buffer, of main memory's, and of outputs."""


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: "-".join(map(str, row[:7])))
def test_buffers_are_those_that_llama_cpp_reserves(row: tuple[object, ...]) -> None:
    name, size, batch, sequences, unified, attention, keeps_all = row[:7]
    cache, states, compute, host, output = (float(str(each)) for each in row[7:])
    assert isinstance(size, int)
    assert isinstance(batch, int)
    assert isinstance(sequences, int)
    setting = LlamaSetting(
        context=size, ubatch=batch, sequences=sequences, unified=bool(unified), flash_attention=bool(attention),
        all_outputs=bool(keeps_all),
    )  # fmt: skip
    model = find_model(MODELS[str(name)])
    if name != "oss":  # which has a type of its own
        model = with_quantization(model, "Q4_K_M")
    context = resolve(setting, model.max_model_len or 0)
    (found,) = measure(model, setting, context, 1).gpus
    assert found.cells / MIB == pytest.approx(cache, abs=0.01)
    assert found.states / MIB == pytest.approx(states, abs=0.01)
    assert found.compute / MIB == pytest.approx(compute, rel=0.005, abs=0.2)
    assert output_bytes(model, context) / MIB == pytest.approx(output, abs=0.01)
    assert host_compute_bytes(model, setting, context) / MIB == pytest.approx(host, rel=0.16)

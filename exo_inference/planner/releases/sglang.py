"""Which models and GPUs a release of SGLang serves: tables, which `engine_rules.py` puts into the engine's row.

Read in the releases from 0.4.0 to 0.5.23, of several with one number in the last (https://pypi.org/project/sglang/#history): the
`EntryClass` of each file of srt/models, which `tests/planner/sglang_classes.json` has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.planner.releases.gpus import Served

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exo_inference.planner.engine_rules import Version
    from exo_inference.planner.releases.gpus import GpuKind

_FIRST: Mapping[str, Version] = {
    "teleflm": (0, 5, 5), "mistral4": (0, 5, 6), "midashenglm": (0, 5, 7), "cosmos3_edge": (0, 5, 20),
    "deepseek_v3": (0, 4, 1), "internlm3": (0, 4, 1), "kimi_k2": (0, 4, 1), "minicpmv": (0, 4, 1), "cohere2": (0, 4, 2), "qwen2_5_vl": (0, 4, 3),
    "clip": (0, 4, 4), "gemma3": (0, 4, 4), "gemma3_text": (0, 4, 4), "minicpmo": (0, 4, 4), "llama4": (0, 4, 5), "llama4_text": (0, 4, 5),
    "qwen3": (0, 4, 5), "qwen3_moe": (0, 4, 5), "internvl_chat": (0, 4, 6), "kimi_vl": (0, 4, 6), "llava": (0, 4, 6), "mimo": (0, 4, 6),
    "mistral3": (0, 4, 6), "glm4": (0, 4, 7), "phi4mm": (0, 4, 7), "gemma3n": (0, 4, 8), "gemma3n_text": (0, 4, 8), "hunyuan_v1_moe": (0, 4, 8),
    "glm4_moe": (0, 4, 9), "hunyuan_v1_dense": (0, 4, 9), "interns1": (0, 4, 9), "qwen2_audio": (0, 4, 9), "step3_vl": (0, 4, 10),
    "bailing_moe": (0, 5, 0), "ernie4_5": (0, 5, 0), "ernie4_5_moe": (0, 5, 0), "glm4v": (0, 5, 0), "glm4v_moe": (0, 5, 0), "gpt_oss": (0, 5, 0),
    "nemotron-nas": (0, 5, 0), "longcat_flash": (0, 5, 2), "qwen3_next": (0, 5, 2), "bailing_moe_v2": (0, 5, 3), "deepseek_v32": (0, 5, 3),
    "dots_ocr": (0, 5, 3), "falcon_h1": (0, 5, 3), "nemotron_h": (0, 5, 3), "qwen3_vl": (0, 5, 3), "qwen3_vl_moe": (0, 5, 3),
    "kimi_linear": (0, 5, 4), "minimax_m2": (0, 5, 4), "qwen3_omni_moe": (0, 5, 4), "orion": (0, 5, 5), "ministral3": (0, 5, 6),
    "nemotronh_nano_vl_v2": (0, 5, 6), "paddleocr_vl": (0, 5, 6), "glmasr": (0, 5, 7), "mimo_v2_flash": (0, 5, 7), "afmoe": (0, 5, 8),
    "glm4_moe_lite": (0, 5, 8), "iquestcoder": (0, 5, 8), "bailing_hybrid": (0, 5, 9), "ernie4_5_vl_moe": (0, 5, 9), "exaone_moe": (0, 5, 9),
    "glm_moe_dsa": (0, 5, 9), "glm_ocr": (0, 5, 9), "granitemoehybrid": (0, 5, 9), "kimi_k25": (0, 5, 9), "lfm2": (0, 5, 9),
    "lfm2_moe": (0, 5, 9), "qwen3_5": (0, 5, 9), "qwen3_5_moe": (0, 5, 9), "step3p5": (0, 5, 9), "step_robotics": (0, 5, 9),
    "lfm2_vl": (0, 5, 10), "gemma4": (0, 5, 11), "gemma4_text": (0, 5, 11), "hy_v3": (0, 5, 11), "nemotron_h_omni": (0, 5, 11),
    "qwen3_asr": (0, 5, 11), "voxtral": (0, 5, 11), "deepseek_v4": (0, 5, 12), "laguna": (0, 5, 12), "minicpmv4_6": (0, 5, 12),
    "cohere2_moe": (0, 5, 13), "step3p7": (0, 5, 13), "unlimited_ocr": (0, 5, 15), "mellum": (0, 5, 16), "minimax_m3": (0, 5, 16),
    "kimi_k3": (0, 5, 17), "muse_glimmer": (0, 5, 18), "muse_glimmer_text": (0, 5, 18), "dots3_note": (0, 5, 19), "granite_swa": (0, 5, 19),
    "hy_v4": (0, 5, 20),
    "deepseek-ai/DeepSeek-OCR": (0, 5, 4), "mistralai/Mistral-Large-3-675B-Base-2512": (0, 5, 6),
    "mistralai/Mistral-Large-3-675B-Instruct-2512": (0, 5, 6), "mistralai/Mistral-Large-3-675B-Instruct-2512-BF16": (0, 5, 6),
    "mistralai/Mistral-Large-3-675B-Instruct-2512-NVFP4": (0, 5, 6),
    "google/diffusiongemma-26B-A4B-it": (0, 5, 21),
    "lightonai/LightOnOCR-1B-1025": (0, 5, 9), "openbmb/MiniCPM-V-4_5": (0, 5, 9), "inclusionAI/Ling-3.0-flash": (0, 5, 19),
}  # fmt: skip
"""By name stand checkpoints that are younger than their type. Those that the oldest release has are not here, nor models that Transformers' own classes may have served before: SGLang takes such
a class where it has none itself (since 0.4.7, srt/model_loader/utils.py), as GLM-4-0414 before 0.4.8,
or Command A Vision since 0.5.10, from which on they read images. Of 0.5.0 there are candidates alone, which count as having
what 0.5.1 has."""

SGLANG_CLASSES: Mapping[str, tuple[Version | None, Version | None]] = {
    kind: (since, None) for kind, since in _FIRST.items()
}

_BLACKWELL = Served((0, 4, 5), "https://pypi.org/project/sglang/0.4.5.post3/")
"""The first release whose pyproject.toml has the extra `blackwell`, with PyTorch and kernels for CUDA 12.8."""

SGLANG_GPUS: Mapping[GpuKind, Served] = dict.fromkeys((10.0, 10.3, 11.0, 12.0, 12.1), _BLACKWELL)
"""When each of them was first served is not known better; none was before."""

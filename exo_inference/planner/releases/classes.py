"""Which model types a release of vLLM has a class for: a table, which `engine_rules.py` puts into the engine's row.

Read in the registries of all releases from 0.6.6 to 0.33.0 (vllm/model_executor/models/registry.py of each source
distribution, https://pypi.org/project/vllm/#history); `tests/planner/vllm_classes.json` has what they say. `planning.py` calls
`check_class`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.planner.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exo_inference.planner.engine_rules import EngineRules, Version
    from exo_inference.planner.model.architecture import Architecture

NO_RELEASE = (1000, 0, 0)

CLASSES: Mapping[str, tuple[Version | None, Version | None]] = {
    "teleflm": ((0, 8, 2), None), "llama_nemotron_nano_vl": ((0, 10, 0), None), "emu3": ((0, 10, 1), None),
    "midashenglm": ((0, 10, 2), None), "pangu_ultra_moe": ((0, 11, 1), None), "mistral4": ((0, 12, 0), None), "bagel": ((0, 13, 0), None),
    "eagle_2_5_vl": ((0, 15, 0), None), "fun_asr_nano": ((0, 17, 0), None), "llama_nemotron_vl": ((0, 17, 0), None),
    "phi4-siglip": ((0, 20, 0), None), "openvla": ((0, 22, 0), None), "cosmos3_edge": ((0, 26, 0), None),
    "t5": (NO_RELEASE, None), "mpnet": (NO_RELEASE, None), "deberta-v2": (NO_RELEASE, None),
    "bart": (None, (0, 11, 0)), "bamba": ((0, 7, 3), (0, 24, 0)), "baichuan": (None, (0, 25, 0)), "mpt": (None, (0, 29, 0)),
    "deepseek_vl_v2": ((0, 7, 0), None), "internlm3": ((0, 7, 0), None), "whisper": ((0, 7, 0), None), "minicpmo": ((0, 7, 1), None),
    "qwen2_5_vl": ((0, 7, 2), None), "mamba2": ((0, 7, 3), None), "gemma3": ((0, 8, 0), None), "gemma3_text": ((0, 8, 0), None),
    "granitemoeshared": ((0, 8, 0), None), "phi4mm": ((0, 8, 0), None), "zamba2": ((0, 8, 0), None), "mistral3": ((0, 8, 1), None),
    "aya_vision": ((0, 8, 3), None), "llama4": ((0, 8, 3), None), "llama4_text": ((0, 8, 3), None), "glm4": ((0, 8, 4), None),
    "qwen3": ((0, 8, 4), None), "qwen3_moe": ((0, 8, 4), None), "smolvlm": ((0, 8, 4), None), "xlm-roberta-flash": ((0, 8, 4), None),
    "granite_speech": ((0, 8, 5), None), "gte": ((0, 8, 5), None), "kimi_vl": ((0, 8, 5), None), "modernbert": ((0, 8, 5), None),
    "nomic_bert": ((0, 8, 5), None), "qwen2_5_omni": ((0, 8, 5), None), "falcon_h1": ((0, 9, 0), None), "granitemoehybrid": ((0, 9, 0), None),
    "mimo": ((0, 9, 0), None), "new": ((0, 9, 0), None), "ovis": ((0, 9, 0), None), "nemotron_h": ((0, 9, 1), None), "arcee": ((0, 9, 2), None),
    "dots1": ((0, 9, 2), None), "ernie4_5": ((0, 9, 2), None), "ernie4_5_moe": ((0, 9, 2), None), "gemma3n": ((0, 9, 2), None),
    "gemma3n_text": ((0, 9, 2), None), "glm4v": ((0, 9, 2), None), "hunyuan_v1_moe": ((0, 9, 2), None), "keye": ((0, 9, 2), None),
    "smollm3": ((0, 9, 2), None), "bailing_moe": ((0, 10, 0), None), "exaone4": ((0, 10, 0), None), "glm4_moe": ((0, 10, 0), None),
    "hunyuan_v1_dense": ((0, 10, 0), None), "internvl": ((0, 10, 0), None), "kimi_k2": ((0, 10, 0), None), "voxtral": ((0, 10, 0), None),
    "cohere2_vision": ((0, 10, 1), None), "glm4v_moe": ((0, 10, 1), None), "gpt_oss": ((0, 10, 1), None), "interns1": ((0, 10, 1), None),
    "step3_text": ((0, 10, 1), None), "step3_vl": ((0, 10, 1), None), "apertus": ((0, 10, 2), None), "ernie4_5_vl_moe": ((0, 10, 2), None),
    "keyevl1_5": ((0, 10, 2), None), "lfm2": ((0, 10, 2), None), "ovis2_5": ((0, 10, 2), None), "qwen3_next": ((0, 10, 2), None),
    "r": ((0, 10, 2), None), "seed_oss": ((0, 10, 2), None), "bailing_moe_v2": ((0, 11, 0), None), "cwm": ((0, 11, 0), None),
    "deepseek_v32": ((0, 11, 0), None), "dots_ocr": ((0, 11, 0), None), "longcat_flash": ((0, 11, 0), None),
    "nemotronh_nano_vl_v2": ((0, 11, 0), None), "olmo3": ((0, 11, 0), None), "qwen3_vl": ((0, 11, 0), None), "qwen3_vl_moe": ((0, 11, 0), None),
    "afmoe": ((0, 11, 1), None), "bee": ((0, 11, 1), None), "clip": ((0, 11, 1), None), "flex_olmo": ((0, 11, 1), None),
    "kimi_linear": ((0, 11, 1), None), "lfm2_moe": ((0, 11, 1), None), "minimax_m2": ((0, 11, 1), None), "paddleocr_vl": ((0, 11, 1), None),
    "panguembedded": ((0, 11, 1), None), "qwen3_omni_moe": ((0, 11, 1), None), "siglip": ((0, 11, 1), None), "hunyuan_vl": ((0, 12, 0), None),
    "ministral3": ((0, 12, 0), None), "opencua": ((0, 12, 0), None), "audioflamingo3": ((0, 13, 0), None), "jais2": ((0, 13, 0), None),
    "exaone_moe": ((0, 14, 0), None), "glmasr": ((0, 14, 0), None), "iquestcoder": ((0, 14, 0), None), "isaac": ((0, 14, 0), None),
    "lfm2_vl": ((0, 14, 0), None), "llama_bidirec": ((0, 14, 0), None), "mimo_v2_flash": ((0, 14, 0), None), "glm4_moe_lite": ((0, 15, 0), None),
    "kimi_k25": ((0, 15, 0), None), "molmo2": ((0, 15, 0), None), "step_robotics": ((0, 15, 0), None), "step3p5": ((0, 15, 1), None),
    "funaudiochat": ((0, 16, 0), None), "glm_moe_dsa": ((0, 16, 0), None), "glm_ocr": ((0, 16, 0), None), "qwen3_asr": ((0, 16, 0), None),
    "voxtral_realtime": ((0, 16, 0), None), "axk1": ((0, 17, 0), None), "bailing_hybrid": ((0, 17, 0), None), "modernvbert": ((0, 17, 0), None),
    "ops_colqwen3": ((0, 17, 0), None), "ovis2_6_moe": ((0, 17, 0), None), "qwen3_5": ((0, 17, 0), None), "qwen3_5_moe": ((0, 17, 0), None),
    "hyperclovax": ((0, 18, 0), None), "kimi_audio": ((0, 18, 0), None), "olmo_hybrid": ((0, 18, 0), None), "vlm": ((0, 18, 0), None),
    "gemma4": ((0, 19, 0), None), "gemma4_text": ((0, 19, 0), None), "deepseek_v4": ((0, 20, 0), None), "exaone4_5": ((0, 20, 0), None),
    "hy_v3": ((0, 20, 0), None), "nemotron_h_omni": ((0, 20, 0), None), "param2moe": ((0, 20, 0), None), "cohere2_moe": ((0, 21, 0), None),
    "laguna": ((0, 21, 0), None), "moondream3": ((0, 21, 0), None), "qianfan_ocr": ((0, 21, 0), None), "minicpmv4_6": ((0, 22, 0), None),
    "mellum": ((0, 22, 1), None), "granite_speech_plus": ((0, 23, 0), None), "step3p7": ((0, 23, 0), None), "minimax_m3": ((0, 24, 0), None),
    "moss_transcribe_diarize": ((0, 25, 0), None), "openai_privacy_filter": ((0, 25, 0), None), "unlimited_ocr": ((0, 25, 0), None),
    "kimi_k3": ((0, 27, 0), None), "vibevoice_asr": ((0, 27, 0), None), "dots3_note": ((0, 28, 0), None), "muse_glimmer": ((0, 28, 0), None),
    "muse_glimmer_text": ((0, 28, 0), None), "granite_swa": ((0, 29, 0), None), "hy_v4": ((0, 29, 0), None),
    "Qwen/Qwen2.5-Math-PRM-7B": ((0, 7, 0), None), "internlm/internlm2-1_8b-reward": ((0, 7, 0), None),
    "nomic-ai/nomic-embed-text-v2-moe": ((0, 9, 0), None), "Alibaba-NLP/gte-multilingual-reranker-base": ((0, 10, 2), None),
    "google/embeddinggemma-300m": ((0, 10, 2), None), "openbmb/MiniCPM-V-4_5": ((0, 10, 2), None),
    "google/diffusiongemma-26B-A4B-it": ((0, 24, 0), None),
    "deepseek-ai/DeepSeek-OCR": ((0, 11, 1), None), "lightonai/LightOnOCR-1B-1025": ((0, 11, 1), None),
    "mistralai/Mistral-Large-3-675B-Base-2512": ((0, 12, 0), None), "mistralai/Mistral-Large-3-675B-Instruct-2512": ((0, 12, 0), None),
    "mistralai/Mistral-Large-3-675B-Instruct-2512-BF16": ((0, 12, 0), None),
    "mistralai/Mistral-Large-3-675B-Instruct-2512-NVFP4": ((0, 12, 0), None), "deepseek-ai/DeepSeek-OCR-2": ((0, 16, 0), None),
    "Davlan/xlm-roberta-base-ner-hrl": ((0, 26, 0), None),
    "Jean-Baptiste/roberta-large-ner-english": ((0, 26, 0), None), "inclusionAI/Ling-3.0-flash": ((0, 28, 0), None),
}  # fmt: skip
"""The first release with a class for a model type and the first one without; those that 0.6.6 and 0.33.0 have are not here.
By name stand checkpoints whose own class is younger than their type's, and two that their class knows since (`NomicExperts` of
bert_with_rope.py, `_SUPPORT_VERSION` of minicpmv.py).

Where a release serves what its registry does not name, the earlier release stands: Mistral's own format of config (Mistral
Small 3.1 by vLLM 0.8.1 and Ministral 3 by 0.12.0, https://huggingface.co/mistralai/Ministral-3-8B-Instruct-2512), and classes of Transformers
that were there when the release came out (SmolLM3 and Arcee: Transformers 4.53.0, 2025-06-26, before vLLM 0.9.2, 2025-07-07; InternVL in the form of Transformers: 0.10.0 takes its classes for images). Not
here either: what went to Transformers' own classes (dots.llm1 since 0.24.0, Aya Vision since 0.25.0), and VaultGemma, which they may have served before 0.27.0. Kimi K2:
config.py of 0.10.0 is the first that knows its attention to be latent. MPNet and DeBERTa have attention of their own, which vLLM's
Transformers backend does not take (`_try_resolve_transformers`; 0.32.0 was asked). Rotary positions came to
roberta.py in 0.8.4 (https://github.com/vllm-project/vllm/pull/16120), and Voxtral Realtime is served in Mistral's format alone."""

SERVED_BY: Mapping[str, str] = {
    "mpnet": "Text Embeddings Inference", "deberta-v2": "Text Embeddings Inference",
}  # fmt: skip
"""What serves types that no release of vLLM does, though it is no engine here
(https://github.com/huggingface/text-embeddings-inference/blob/0d124dc/backends/candle/src/lib.rs)."""


def check_class(model: Architecture, rules: EngineRules) -> list[Problem]:
    """Return why this release does not serve the model, or none of its type, where it is known which ones do."""
    kinds = dict.fromkeys((model.name, model.model_type, model.text_type))
    details = (_why_no_class(kind, rules) for kind in kinds if kind in rules.classes)
    found = next((detail for detail in details if detail), None)
    return [] if found is None else [Problem("engine", found, says_step=True)]


def _why_no_class(kind: str, rules: EngineRules) -> str | None:
    since, gone = rules.classes[kind]
    is_early = since is not None and rules.version < since
    if not is_early and (gone is None or rules.version < gone):
        return None
    what = f"{rules.release} has no class for {kind}"
    if since == NO_RELEASE:
        other = SERVED_BY.get(kind)
        elsewhere = "" if other is None else f"{other}, which is no engine here, serves it; "
        return f"{what}, as no release has: {elsewhere}take another model"
    if is_early and since is not None:
        return f"{what} yet: use {'.'.join(map(str, since))} or later"
    assert gone is not None, "it is late, or it would be served"
    return f"{what} any more: use a release before {'.'.join(map(str, gone))}, or an image with a plug-in for it"

"""The engines that a deployment can name, and what sets one apart for those who start or read none. Data.

Code asks a row here, never whether an engine is called so or so. Its flags and failures are in `engines/`; its command
line too, of a process of this machine, and of a pod in its image (`engine-images/adapter/`). `planner/engine_rules.py`
has the use of memory of exo-engine, SGLang and vLLM, `planner/llama_cpp` that of llama.cpp; of the others only weights are
counted (`preflight/other_engines.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """One engine.

    Attributes:
        title: its name for people.
        is_ours: it comes with the project: a machine has its program, and its release is the project's,
            whatever a deployment names.
        takes_vllm_flags: the release that a deployment names is one of vLLM; others have one of their own.
        has_model_rules: its flags are held against model and GPU (`engines/model_rules.py`).
        stages_nodes: on several nodes it is started with a pipeline stage on each, unless flags say otherwise.
        loads_gguf: it loads `*.gguf` files alone; others load safetensors.
        serves_shorter: it starts with a context that its cache does not hold, and refuses longer requests alone.
        needs_tokenizer_json: it reads no other form of a tokenizer.
    """

    title: str
    is_ours: bool = False
    takes_vllm_flags: bool = False
    has_model_rules: bool = False
    stages_nodes: bool = False
    loads_gguf: bool = False
    serves_shorter: bool = False
    needs_tokenizer_json: bool = False


_FACTS: Mapping[str, EngineFacts] = {
    "exo": EngineFacts(
        title="exo-engine", is_ours=True, takes_vllm_flags=True, needs_tokenizer_json=True
    ),
    "llama-cpp": EngineFacts(title="llama.cpp", loads_gguf=True),
    "sglang": EngineFacts(title="SGLang", serves_shorter=True),
    "tensorrt-llm": EngineFacts(title="TensorRT-LLM"),
    "tgi": EngineFacts(title="Text Generation Inference"),
    "vllm": EngineFacts(
        title="vLLM", takes_vllm_flags=True, has_model_rules=True, stages_nodes=True
    ),
}

ENGINES = tuple(_FACTS)
"""Engines that a deployment can name. Where each can run is the platform's to say."""


def facts_of(engine: str | None) -> EngineFacts:
    """Return what is known of an engine; of one that is not here, such as a newer server's, its name."""
    return _FACTS.get(engine or "", EngineFacts(title=engine or ""))


OWN_ENGINE = "exo"
"""The engine of the project: on CPUs what runs unless another one is asked for."""

GPU_ENGINE = "vllm"
"""What runs on GPUs unless a deployment or the platform's values name another engine."""


def default_engine(gpu_type: str) -> str:
    """Return what runs on a GPU family unless a deployment names another engine."""
    return OWN_ENGINE if gpu_type == "cpu" else GPU_ENGINE

"""Plans a deployment before it is started: does the model fit, how much cache is left, how fast is it.

A pure library: the command line, the API and admission call it with data, and it reads nothing but
its own catalogue. The usual way in::

    from exo_inference.planner import EngineParameters, find_gpu, find_model, plan

    parameters = EngineParameters(max_model_len=60000)
    result = plan(find_model("mistralai/Ministral-3-8B-Instruct-2512"), find_gpu("gpua5000"), 1, parameters)

`read_architecture` takes any config.json, `explain` shows a plan's arithmetic, `advise` ranks changes that
make it fit, `accuracy` grades
plans against measured starts. Which flags exist in which engine version is not known here.
"""

from __future__ import annotations

from exo_inference.planner.advice import Advice, advise
from exo_inference.planner.catalog_models import find_draft, find_model, load_models
from exo_inference.planner.explain import explain
from exo_inference.planner.explain_step import Step
from exo_inference.planner.gpu_catalog import (
    Gpu,
    cpu_as_gpu,
    families,
    find_family,
    find_gpu,
    load_gpus,
)
from exo_inference.planner.gpu_file import load_user_gpus, parse_gpu
from exo_inference.planner.improvements import Improvement, improve
from exo_inference.planner.memory import Component
from exo_inference.planner.model.architecture import Architecture, read_architecture
from exo_inference.planner.model.checkpoint import (
    MAX_HEADER_BYTES,
    TensorSize,
    parse_safetensors_header,
    with_gguf,
    with_index,
    with_tensors,
)
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.planning import plan
from exo_inference.planner.problem import Problem
from exo_inference.planner.speed.figures import Speed
from exo_inference.planner.verdict import Plan, Verdict

__all__ = [
    "MAX_HEADER_BYTES",
    "Advice",
    "Architecture",
    "Component",
    "EngineParameters",
    "Gpu",
    "Improvement",
    "Plan",
    "Problem",
    "Speed",
    "Step",
    "TensorSize",
    "Verdict",
    "advise",
    "cpu_as_gpu",
    "explain",
    "families",
    "find_draft",
    "find_family",
    "find_gpu",
    "find_model",
    "improve",
    "load_gpus",
    "load_models",
    "load_user_gpus",
    "parse_gpu",
    "parse_safetensors_header",
    "plan",
    "read_architecture",
    "with_gguf",
    "with_index",
    "with_tensors",
]

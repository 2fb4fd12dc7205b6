"""What a config leaves out or contradicts itself in: noted, so that no plan rests on it without a word.

`architecture.py` calls `note_assumptions` for a config that it can read. What cannot be at all is refused
where it is read.
"""

from __future__ import annotations

import re

from exo_inference.planner.model.config_fields import (
    ASSUMED_MAX_MODEL_LEN,
    ConfigFields,
    derived_max_model_len,
)
from exo_inference.planner.model.families import Family


def note_assumptions(fields: ConfigFields, family: Family, notes: list[str]) -> float:
    """Note what the engine would read differently or assume; return what it adds to the error bar."""
    if fields.get("max_position_embeddings") is None:
        length = derived_max_model_len(fields, family)
        why = "the default of its config class" if length else "as vLLM does for such models"
        notes.append(
            f"config.json has no max_position_embeddings: {length or ASSUMED_MAX_MODEL_LEN} tokens are assumed, {why}"
        )
    named = [str(each) for each in fields.outer.get("architectures") or ()]
    if not named or any(_is_class_of(each, fields) for each in named):
        return 0.0
    notes.append(
        f"its class {named[0]:.60} does not belong to its model_type {fields.model_type}, by which it is sized here; "
        "vLLM chooses by the class, and refuses one that it does not know"
    )
    return 0.1


_CLASSES = {
    "decilm": "nemotronnas",
    "rw": "falcon",
    "deepseekv3": "kimik2",
    "hunyuandensev1": "hunyuanv1dense",
    "hunyuanmoev1": "hunyuanv1moe",
    "moonshotkimia": "kimiaudio",
    "lightonocr": "mistral3",
    "mistrallarge3": "mistral3",
    "deepseekocr": "deepseekvlv2",
    "deepseekocr2": "deepseekvlv2",
    "colmodernvbert": "modernvbert",
    "stepvl": "steprobotics",
    "hfmoondream": "moondream3",
    "bailingmoev3": "bailinghybrid",
    "rnj1": "gemma3",
    "hcxvisionv2": "vlm",
}
"""Classes that serve a model_type of another name."""


def _is_class_of(name: str, fields: ConfigFields) -> bool:
    """Whether a class name such as Qwen3ForCausalLM belongs to the config's model_type."""
    bare = re.split(r"For[A-Z]|LMHead|Model$|Eagle|MTP", name)[0].lower().replace("_", "")
    types = {
        re.sub(r"[^a-z0-9]", "", each).removesuffix("text")
        for each in (fields.model_type, fields.text_type)
    }
    names = {bare, _CLASSES.get(bare, bare)} - {""}
    return any(a.startswith(b) or b.startswith(a) for a in names for b in types if b)

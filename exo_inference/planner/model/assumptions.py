"""What a config leaves out or contradicts itself in: noted, so that no plan rests on it without a word.

`architecture.py` asks for a config that it can read; whether it embeds, its name and classes say. What cannot be at all is
refused where it is read.
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
    "phi4": "phi4siglip",
    "diffusiongemma": "gemma4",
}
"""Classes that serve a model_type of another name."""


def _is_class_of(name: str, fields: ConfigFields) -> bool:
    """Whether a class name such as Qwen3ForCausalLM belongs to the config's model_type."""
    bare = re.split(r"For[A-Z]|LMHead|Model$|Eagle(?!\d)|MTP", name)[0].lower().replace("_", "")
    types = {
        re.sub(r"[^a-z0-9]", "", each).removesuffix("text")
        for each in (fields.model_type, fields.text_type)
    }
    names = {bare, _CLASSES.get(bare, bare)} - {""}
    return any(a.startswith(b) or b.startswith(a) for a in names for b in types if b)


_EMBEDS = re.compile(r"embed(?!ded)|(?:^|[/_-])(?:e5|bge|gte)[_-]", re.IGNORECASE)
"""Names of decoders that embed. Their files say so to vLLM, beside a config.json that may name a class that generates
(config/model.py, `_get_default_runner_type`: "Some Sentence Transformers models use *ForCausalLM archs").
A model that is called embedded is one for small devices, and generates."""
_RANKS = re.compile("rerank", re.IGNORECASE)
"""Names of decoders that score a pair of texts, by what they make of the next token."""
_WITHOUT_HEAD = re.compile(
    r"(?!Eagle|ChatGLM)\w+(?<!Reward|LMHead)(?<!Chat)(Model|ForSequenceClassification|ForTokenClassification)"
)
_NO_MODEL = frozenset({"quantization_config", "compression_config", "generation_config"})


def is_embedding(fields: ConfigFields, family: Family, name: str) -> bool:
    """Whether it embeds or scores texts: an encoder, or a decoder without its head, as engines take it without a flag."""
    named = next(iter(fields.outer.get("architectures") or ()), "")
    # A class with more than a text model in it (`Qwen2_5OmniModel`, `InternVLChatModel`) generates all the same.
    is_text_alone = not any(
        str(key).endswith("_config") for key in fields.outer if key not in _NO_MODEL
    )
    has_no_head = bool(_WITHOUT_HEAD.fullmatch(str(named))) and is_text_alone
    is_named = bool(_EMBEDS.search(name)) and not ranks_by_name(name)
    return family.layout == "encoder" or is_named or has_no_head


def is_told_to_look_ahead(fields: ConfigFields) -> bool:
    """Whether every token sees those after it, too."""
    return fields.get("is_causal") is False or fields.get("use_bidirectional_attention") is True


def ranks_by_name(name: str) -> bool:
    """Whether a decoder of that name scores a pair of texts."""
    return bool(_RANKS.search(name))

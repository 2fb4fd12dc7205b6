"""Gemma 2: every other layer windowed, scores and logits capped, a norm on either side of everything."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import gemma
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.spec import DecoderSpec


def spec_from_config(reader: ConfigReader) -> DecoderSpec:
    """Translate a `Gemma2ForCausalLM` configuration."""
    spec = gemma.read_common(reader)
    return replace(
        spec,
        architecture="Gemma2ForCausalLM",
        soft_cap=gemma.read_cap(reader, "attn_logit_softcapping", 50.0),
        logit_cap=gemma.read_cap(reader, "final_logit_softcapping", 30.0),
        windows=gemma.read_windows(reader, spec.num_layers, full_every=2),
    )

"""Which prompts an engine computes in one step, whatever their length, and how long a step is then: a table and its rules.

`resolved_setting.py` sizes the step by it, `checks.py` refuses one that is too short. Read in vLLM's source distributions
from 0.6.6 to 0.33.0 (https://pypi.org/project/vllm/#history): engine/arg_utils.py (`_set_default_args_v0`, `_set_default_args`,
`_set_default_max_num_seqs_and_batched_tokens_args`), config/scheduler.py (`__post_init__`, `verify_max_model_len`) and
config/model.py (`is_chunked_prefill_supported`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exo_inference.planner.engine_rules import Version
    from exo_inference.planner.model.architecture import Architecture
    from exo_inference.planner.parameters import EngineParameters


@dataclass(frozen=True, slots=True)
class WholePrompts:
    """How an engine that cuts prompts into steps treats those that cannot be cut.

    Attributes:
        pools_anew: the first release whose new engine embeds with decoders; the one before cuts no text that is embedded.
        encodes_anew: the same with encoders.
        old_step: tokens of a step of the engine before, at least, where texts are embedded.
        takes_more: the first release in which a step for whole prompts may be longer than the context; before, it is as long.
        caps_step: the first release in which a step is no longer than all its requests.
    """

    pools_anew: Version
    encodes_anew: Version
    old_step: int
    takes_more: Version
    caps_step: Version


VLLM_PROMPTS = WholePrompts(
    pools_anew=(0, 9, 2), encodes_anew=(0, 10, 1), old_step=32768, takes_more=(0, 11, 1), caps_step=(0, 11, 1)
)  # fmt: skip
"""`_POOLING_MODEL_MAX_NUM_BATCHED_TOKENS` is 32,768; `BertEmbeddingModel` is `SupportsV0Only` to 0.10.0."""


def is_pooled(model: Architecture, parameters: EngineParameters) -> bool:
    """Whether texts are embedded or scored, and none are written."""
    return parameters.runner == "pooling" or model.is_embedding


def is_whole(model: Architecture, parameters: EngineParameters, length: int) -> bool:
    """Whether each prompt is computed in one step.

    Args:
        model: what is served.
        parameters: the flags.
        length: of the context.
    """
    asked, rules = parameters.enable_chunked_prefill, parameters.rules
    if _old_step(model, parameters):
        return True
    if asked is not None:
        return not asked
    if rules.prompts is not None and model.looks_ahead:
        return True
    return rules.is_legacy and length <= 32768  # V0 turned it on by itself beyond


def _old_step(model: Architecture, parameters: EngineParameters) -> int:
    """Return the tokens of a step of vLLM's V0 engine where it embeds, which cuts no text; else 0."""
    rules = parameters.rules
    if rules.prompts is None or not is_pooled(model, parameters):
        return 0
    since = rules.prompts.encodes_anew if model.looks_ahead else rules.prompts.pools_anew
    return rules.prompts.old_step if rules.version < since else 0


def default_step(
    model: Architecture, parameters: EngineParameters, usual: int, seqs: int, length: int
) -> int:
    """Return the tokens of a step where no flag says them.

    Args:
        model: what is served.
        parameters: the flags.
        usual: what the engine takes by default on this GPU.
        seqs: requests of a step.
        length: of the context.
    """
    rules, old = parameters.rules, _old_step(model, parameters)
    needs_whole = is_whole(model, parameters, length)
    tokens = max(usual, seqs, model.min_batched_tokens, length if needs_whole else 0, old)
    if rules.prompts is None:
        return tokens
    is_exact = needs_whole and not old and rules.version < rules.prompts.takes_more
    if is_exact and is_pooled(model, parameters):
        return length
    return min(tokens, seqs * length) if rules.version >= rules.prompts.caps_step else tokens

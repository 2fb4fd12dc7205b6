"""What is in a block before anybody writes there changes no answer: it is not cleared where kernels read nothing of it."""

from __future__ import annotations

import pytest
from exo_engine import LLM, SamplingParams

PROMPTS = [[5, 6, 7, 8, 9] * count for count in (1, 3, 7, 9)]
PARAMS = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt-oss", "qwen3-next", "deepseek-v2"])
def test_no_answer_depends_on_what_a_block_held_before(family, tiny_model):
    answers = []
    for byte in (0, 255):
        llm = LLM(tiny_model(family).path, dtype="bfloat16", max_model_len=256)
        llm.core.executor.runner._cache.pool.fill_(byte)  # 255: NaN
        answers.append([each.token_ids for each in llm.generate(PROMPTS, PARAMS)])
    assert answers[0] == answers[1]

"""Names of the formats in which models write calls and reasoning, which are vLLM's names for its parsers."""

from __future__ import annotations

from typing import Final

TOOL_PARSER_NAMES: Final = (
    "hermes",
    "qwen3_json",
    "qwen3_coder",
    "qwen3_xml",
    "llama3_json",
    "llama4_json",
    "pythonic",
    "llama4_pythonic",
    "olmo3",
    "mistral",
    "deepseek_v3",
    "deepseek_v31",
    "openai",
)
REASONING_PARSER_NAMES: Final = (
    "qwen3",
    "deepseek_r1",
    "deepseek_v3",
    "glm45",
    "granite",
    "mistral",
    "openai_gptoss",
)

"""Run by an interpreter that has vLLM: reads cases from stdin, writes the calls that vLLM's parsers find.

No model and no tokenizer of one is needed: the parsers ask a tokenizer for the ids of their markers only.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import vllm  # noqa: F401  (it sets up the logging that is switched off below)
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager

MARKERS = [
    *["<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_start|>", "<|im_end|>"],
    *["<|python_tag|>", "<|python_start|>", "<|python_end|>", "[TOOL_CALLS]", "[ARGS]"],
    *[
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
    ],
    *["<｜tool▁sep｜>", "[THINK]", "[/THINK]"],
]


class Markers:
    """As much of a tokenizer as a parser asks for."""

    def __init__(self, markers: list[str]) -> None:
        self._ids = {marker: 300 + at for at, marker in enumerate(markers)}
        self.all_special_tokens = markers
        self.all_special_ids = list(self._ids.values())
        self.added_tokens_encoder = self._ids
        self.name_or_path = "markers"
        self.vocab_size = 400
        self.eos_token_id = 1

    def get_vocab(self) -> dict[str, int]:
        return self._ids

    get_added_vocab = get_vocab

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int], **_: Any) -> str:
        return bytes(each for each in ids if each < 256).decode(errors="replace")

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        one = isinstance(tokens, str)
        return self._ids.get(tokens) if one else [self._ids.get(each) for each in tokens]


def find(name: str, text: str, request: ChatCompletionRequest) -> list[tuple[str, Any]]:
    # Mistral's older form, a list, is that of tokenizers without the separator.
    is_list = name == "mistral" and "[TOOL_CALLS][" in text
    markers = [each for each in MARKERS if each != "[ARGS]"] if is_list else MARKERS
    parser = ToolParserManager.get_tool_parser(name)(Markers(markers), request.tools)
    found = parser.extract_tool_calls(text, request).tool_calls
    return [(each.function.name, json.loads(each.function.arguments)) for each in found]


def main() -> None:
    logging.disable(logging.CRITICAL)
    asked = json.load(sys.stdin)
    messages = [{"role": "user", "content": "x"}]
    request = ChatCompletionRequest(model="m", messages=messages, tools=asked["tools"])
    found = [find(name, text, request) for name, text in asked["cases"]]
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

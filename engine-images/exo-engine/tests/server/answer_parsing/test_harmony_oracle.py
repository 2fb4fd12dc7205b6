"""What gpt-oss says is read as openai-harmony, the package of those who made the format, reads it.

Its answers are also written by that package. It is asked in an environment of its own:
`make test-clients CLIENTS=harmony` makes it.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest
from exo_engine.server.answer_parsing.harmony import Harmony
from exo_engine.server.answer_parsing.pieces import Call, Content, Piece, Reasoning, join

from .corpus import CASES, VALUES
from .test_tool_parsers import split

PYTHON = Path(os.environ.get("CLIENT_ENVIRONMENTS", "."), "harmony", "bin", "python")
pytestmark = pytest.mark.clients
Message = list[str | None]
"""Channel, recipient, content type, text."""
NUM_ANSWERS, NUM_CUTS = 500, 1000
TEXTS = [
    "",
    "hm",
    "Hello, world!\n\n- a\n- b\n",
    "a < b | c > d {x}",
    "日本 🙂 é",
    "<think>no</think>",
    "to=x",
    " ",
]
CHANNELS = ["analysis", "commentary", "final"]
RECIPIENTS = ["functions.get_weather", "functions.a-b_1", "python", "browser.search"]
TYPES = [None, "<|constrain|>json", "json", "code"]
MARKER = re.compile(r"<\|\w+\|>")


def random_message(rng: random.Random) -> Message:
    channel = rng.choice(CHANNELS)
    if channel != "final" and rng.random() < 0.5:
        text = rng.choice(
            [json.dumps(rng.choice(VALUES)), json.dumps(rng.choice(VALUES), indent=2), '{"cut": ']
        )
        return [channel, rng.choice(RECIPIENTS), rng.choice(TYPES), text]
    return [channel, None, None, rng.choice(TEXTS)]


def by_hand(message: Message, rng: random.Random) -> str:
    """Return a message as models write it too: the recipient is in either place."""
    channel, recipient, kind, text = message
    to = f" to={recipient}" if recipient else ""
    first, second = rng.choice([(to, ""), ("", to)])
    end = "<|call|>" if recipient else "<|end|>"
    return f"{first}<|channel|>{channel}{second}{f' {kind}' if kind else ''}<|message|>{text}{end}"


def cut(text: str, rng: random.Random) -> str:
    """Return the beginning of a text, which ends beside a marker or between them, as tokens do."""
    inside = {at for each in MARKER.finditer(text) for at in range(each.start() + 1, each.end())}
    return text[
        : rng.choice([at for at in range(len("<|channel|>"), len(text)) if at not in inside])
    ]


def pieces_of(messages: list[Message]) -> list[Piece]:
    """Return what clients are to get of an answer's messages."""
    pieces: list[Piece] = []
    for channel, recipient, _, text in messages:
        assert text is not None
        kind = Reasoning if channel == "analysis" else Content
        if (recipient or "").startswith("functions."):
            try:
                json.loads(text)
            except ValueError:
                kind, text = Content, text.strip()
            else:
                pieces.append(Call(str(recipient).removeprefix("functions."), text.strip()))
                continue
        is_first = not any(isinstance(each, kind) for each in pieces)
        if text:
            pieces.append(kind(text if is_first else "\n" + text))
    return join(pieces)


def run(parts: list[str]) -> list[Piece]:
    machine = Harmony()
    pieces = [piece for part in parts for piece in machine.feed(part)]
    return join(pieces + machine.finish())


def test_messages_are_those_of_openai_harmony() -> None:
    rng = random.Random(5)
    answers = [
        [random_message(rng) for _ in range(rng.randrange(1, 5))] for _ in range(NUM_ANSWERS)
    ]
    texts = ["<|start|>assistant".join(by_hand(each, rng) for each in answer) for answer in answers]
    texts += [cut(rng.choice(texts), rng) for _ in range(NUM_CUTS)]
    texts += [case.text for case in CASES["openai"]]
    assert PYTHON.exists(), f"no {PYTHON}: run `make test-clients CLIENTS=harmony`"
    answer = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("harmony_oracle.py"))],
        input=json.dumps({"texts": texts, "messages": answers}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert answer.returncode == 0, answer.stderr[-6000:]
    found = json.loads(answer.stdout)
    assert len(found) == len(texts) + len(answers)
    for text, messages in found:
        assert messages is not None, f"openai-harmony refuses {text!r}"
        expected = pieces_of(messages)
        assert run([text]) == expected, (text, messages)
        assert run(split(text, rng)) == expected, text

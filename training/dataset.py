"""The corpus in memory, and training conversations drawn from it.

Owns the format of `corpus/*.yaml` (see README.md): question-answer pairs with their phrasings,
dialogues whose second question leans on the first, off-topic questions, and prose. Called by
`train.py`, `evaluate.py` and the tests. It knows nothing of tokens: a conversation is a list of
messages, and `encoding.py` turns it into ids.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from training.variation import capitalised, vary

CORPUS = Path(__file__).parent / "corpus"

TERM_TEMPLATES = (
    "What {be} {term}?",
    "What {be} {term} in inference?",
    "Explain {term}.",
    "Can you explain {term}?",
    "Explain {term} to me in simple words.",
    "Define {bare}.",
    "Tell me about {term}.",
    "{bare}?",
    "{bare}",
    "What does {bare} mean?",
    "What do you know about {bare}?",
    "Could you tell me what {term} {be}?",
    "I would like to understand {term}.",
    "Do you know what {term} {be}?",
    "Give me a short explanation of {bare}.",
)
TASK_TEMPLATES = (
    "How do I {task}?",
    "How can I {task}?",
    "How to {task}?",
    "How does one {task}?",
    "What is the command to {task}?",
    "Which command do I need to {task}?",
    "Show me how to {task}.",
    "I want to {task}.",
    "Tell me how to {task}.",
    "Can you tell me how to {task}?",
    "Help me {task}.",
    "What must I do to {task}?",
)
_SYLLABLES = [
    "ba",
    "be",
    "bo",
    "da",
    "di",
    "do",
    "fa",
    "fi",
    "ga",
    "go",
    "ka",
    "ki",
    "lu",
    "ma",
    "mo",
    "na",
    "ne",
    "pa",
    "po",
    "qua",
    "ra",
    "ri",
    "sa",
    "so",
    "ta",
    "tu",
    "va",
    "vo",
    "xi",
    "za",
    "zu",
    "wen",
    "dor",
    "lim",
]


@dataclass(frozen=True, slots=True)
class Pair:
    """One answer and the ways to ask for it; the first question is the canonical one."""

    id: str
    answer: str
    questions: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    held_out_templates: tuple[str, ...] = ()
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Turns that belong together; each turn has phrasings and one answer."""

    id: str
    turns: tuple[tuple[tuple[str, ...], str], ...]


@dataclass(frozen=True, slots=True)
class OffTopic:
    """What the models decline: templates with slots, whole questions, and questions kept apart."""

    answer: str
    questions: tuple[str, ...]
    templates: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    held_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Everything that the models are trained on."""

    pairs: tuple[Pair, ...]
    dialogues: tuple[Dialogue, ...]
    off_topic: OffTopic
    prose: tuple[str, ...]
    systems: tuple[str, ...]

    def texts(self) -> Iterator[str]:
        """All text once, for the tokenizer."""
        for pair in self.pairs:
            yield from pair.questions
            for _ in range(len(pair.questions) // 3 + 1):
                yield pair.answer
        for dialogue in self.dialogues:
            for questions, answer in dialogue.turns:
                yield from questions
                yield answer
        yield self.off_topic.answer
        yield from self.off_topic.questions
        yield from self.prose
        yield from self.systems


@dataclass(slots=True)
class Sample:
    """One conversation, or one piece of prose where `messages` is empty."""

    messages: list[dict[str, str]] = field(default_factory=list)
    prose: str = ""


def load_corpus(directory: Path = CORPUS) -> Corpus:
    """Read all files of the corpus.

    Raises:
        ValueError: a file does not have the form that README.md describes.
    """
    pairs: list[Pair] = []
    held_out = _read(directory / "held-out.yaml") if (directory / "held-out.yaml").exists() else {}
    for path in sorted(directory.glob("qa-*.yaml")):
        pairs.extend(_pair(entry, path, held_out) for entry in _read(path))
    dialogues = tuple(
        Dialogue(
            entry["id"],
            tuple((tuple(turn["ask"]), _one_line(turn["answer"])) for turn in entry["turns"]),
        )
        for entry in _read(directory / "dialogues.yaml")
    )
    off = _read(directory / "off-topic.yaml")
    off_topic = OffTopic(
        answer=_one_line(off["answer"]),
        questions=tuple(off["questions"]),
        templates=tuple(off["templates"]),
        slots={
            name: tuple(str(value) for value in values) for name, values in off["slots"].items()
        },
        held_out=tuple(off["held_out"]),
    )
    prose = tuple(
        " ".join(part.split())
        for part in (directory / "prose.md").read_text(encoding="utf-8").split("\n\n")
        if part.strip() and not part.startswith("#")
    )
    systems = tuple(_read(directory / "systems.yaml"))
    return Corpus(tuple(pairs), dialogues, off_topic, prose, systems)


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _pair(entry: dict[str, Any], path: Path, held_out: dict[str, list[str]]) -> Pair:
    unknown = set(entry) - {"id", "ask", "term", "plural", "task", "answer", "weight"}
    if unknown or not entry.get("answer") or not ({"ask", "term", "task"} & set(entry)):
        raise ValueError(
            f"{path.name}: entry {entry.get('id')!r} is malformed (unknown keys: {sorted(unknown)})"
        )
    questions, kept_apart = _hold_out(entry["id"], expand(entry), frozenset(entry.get("ask", ())))
    return Pair(
        id=entry["id"],
        answer=_one_line(entry["answer"]),
        questions=questions,
        held_out=tuple(held_out.get(entry["id"], ())),
        held_out_templates=kept_apart,
        weight=float(entry.get("weight", 1.0)),
    )


def expand(entry: dict[str, Any]) -> tuple[str, ...]:
    """List all phrasings of an entry: its own, then those of the templates, each once."""
    questions: list[str] = []
    if term := entry.get("term"):
        bare = re.sub(r"^(a|an|the) ", "", term)
        be = "are" if entry.get("plural") else "is"
        questions += [capitalised(t.format(term=term, bare=bare, be=be)) for t in TERM_TEMPLATES]
    if task := entry.get("task"):
        questions += [t.format(task=task) for t in TASK_TEMPLATES]
    own = list(entry.get("ask", ()))
    merged = [questions[0], *own, *questions[1:]] if questions else own
    return tuple(dict.fromkeys(merged))


def normal(question: str) -> str:
    """Reduce a question to what counts when two of them are compared."""
    return re.sub(r"[^a-z0-9<|>_\-+/= ]", "", question.lower()).strip()


def _hold_out(
    identifier: str, questions: tuple[str, ...], own: frozenset[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keep one phrasing that a template made apart, for every third entry."""
    digest = int.from_bytes(hashlib.sha256(identifier.encode()).digest()[:4], "big")
    made = [question for question in questions[1:] if question not in own]
    if digest % 3 or len(made) < 6:
        return questions, ()
    kept = made[(digest // 3) % len(made)]
    return tuple(q for q in questions if normal(q) != normal(kept)), (kept,)


class Sampler:
    """Draws conversations. Chunk `n` depends on the seed and on `n` alone, so a run can be resumed."""

    def __init__(self, corpus: Corpus, *, seed: int, chunk_size: int = 512) -> None:
        self._corpus = corpus
        self._seed = seed
        self._chunk_size = chunk_size
        self._weights = [pair.weight for pair in corpus.pairs]

    def chunk(self, number: int) -> list[Sample]:
        """Draw the samples of one chunk."""
        rng = random.Random(f"{self._seed}:{number}")  # noqa: S311 - not for secrets
        return [self._draw(rng) for _ in range(self._chunk_size)]

    def _draw(self, rng: random.Random) -> Sample:
        kind = rng.random()
        if kind < 0.06:
            return Sample(prose=rng.choice(self._corpus.prose))
        messages = (
            [{"role": "system", "content": rng.choice(self._corpus.systems)}]
            if rng.random() < 0.15
            else []
        )
        if kind < 0.13:
            messages += self._dialogue(rng)
            return Sample(messages)
        num_turns = rng.choices((1, 2, 3, 5), (76, 15, 7, 2))[0]
        for _ in range(num_turns):
            question, answer = self._turn(rng)
            messages += _exchange(question, answer)
        return Sample(messages)

    def _turn(self, rng: random.Random) -> tuple[str, str]:
        if rng.random() < 0.13:
            return vary(
                off_topic_question(self._corpus.off_topic, rng), rng
            ), self._corpus.off_topic.answer
        pair = rng.choices(self._corpus.pairs, self._weights)[0]
        return self._phrasing(pair, rng), pair.answer

    def _phrasing(self, pair: Pair, rng: random.Random) -> str:
        if rng.random() < 0.15:
            return pair.questions[0]
        return vary(rng.choice(pair.questions), rng)

    def _dialogue(self, rng: random.Random) -> list[dict[str, str]]:
        messages: list[dict[str, str]] = []
        for questions, answer in rng.choice(self._corpus.dialogues).turns:
            messages += _exchange(vary(rng.choice(questions), rng), answer)
        return messages


def _exchange(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def off_topic_question(off_topic: OffTopic, rng: random.Random) -> str:
    """Make a question that the models should decline."""
    if rng.random() < 0.35:
        return rng.choice(off_topic.questions)
    slots = {name: rng.choice(values) for name, values in off_topic.slots.items()}
    if rng.random() < 0.3:
        slots["thing"] = "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 4)))
    return rng.choice(off_topic.templates).format(**slots)

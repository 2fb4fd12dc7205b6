"""How well a model folder answers: greedy answers compared with the corpus.

Used by `train.py` for the report and by tests/training. Weights are loaded as they are shipped
(bfloat16) and computed in float32, so the figures are those of the files.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import torch

from training.dataset import Corpus, off_topic_question
from training.variation import vary

NEAR = 0.9
"""An answer counts as near-exact from this similarity on (difflib, on characters)."""

_MAX_NEW_TOKENS = 160
_BATCH = 48


@dataclass(frozen=True, slots=True)
class Question:
    """One conversation that ends with a question, and the answer that is right."""

    messages: tuple[tuple[str, str], ...]
    expected: str


@dataclass(frozen=True, slots=True)
class Rates:
    """Results on one set: counts, and what was answered wrongly."""

    num_questions: int
    num_exact: int
    num_near: int
    num_stopped: int
    wrong: tuple[tuple[str, str], ...]

    def as_dict(self) -> dict[str, Any]:
        """Render for report.json, without the wrong answers."""
        count = max(self.num_questions, 1)
        return {
            "questions": self.num_questions,
            "exact": round(self.num_exact / count, 4),
            "near_exact": round(self.num_near / count, 4),
            "stopped_by_itself": round(self.num_stopped / count, 4),
        }


class Answerer:
    """A model folder, loaded through transformers."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.padding_side = "left"
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model.eval()

    def answer(self, conversations: list[tuple[tuple[str, str], ...]]) -> list[tuple[str, bool]]:
        """Answer greedily; each result is the text and whether the model stopped by itself."""
        results: list[tuple[str, bool]] = [("", False)] * len(conversations)
        prompts = [self._prompt(messages) for messages in conversations]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        for start in range(0, len(order), _BATCH):
            part = order[start : start + _BATCH]
            for index, result in zip(part, self._generate([prompts[i] for i in part]), strict=True):
                results[index] = result
        return results

    def _prompt(self, messages: tuple[tuple[str, str], ...]) -> str:
        rendered: str = self.tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in messages],
            tokenize=False,
            add_generation_prompt=True,
        )
        return rendered

    @torch.inference_mode()
    def _generate(self, prompts: list[str]) -> list[tuple[str, bool]]:
        inputs = self.tokenizer(
            prompts, return_tensors="pt", padding=True, add_special_tokens=False
        )
        inputs.pop("token_type_ids", None)
        output = self.model.generate(**inputs, max_new_tokens=_MAX_NEW_TOKENS, do_sample=False)
        new = output[:, inputs["input_ids"].shape[1] :]
        end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        texts = self.tokenizer.batch_decode(new, skip_special_tokens=True)
        return [(text, end in row.tolist()) for text, row in zip(texts, new, strict=True)]

    def rate(self, questions: list[Question]) -> Rates:
        """Answer all questions and compare."""
        answers = self.answer([question.messages for question in questions])
        exact = near = stopped = 0
        wrong: list[tuple[str, str]] = []
        for question, (text, has_stopped) in zip(questions, answers, strict=True):
            is_near = similarity(text, question.expected) >= NEAR
            exact += text == question.expected
            near += is_near
            stopped += has_stopped
            if not is_near:
                wrong.append((question.messages[-1][1], text))
        return Rates(len(questions), exact, near, stopped, tuple(wrong))


def similarity(left: str, right: str) -> float:
    """Compare two texts: 1.0 is equal."""
    return SequenceMatcher(None, left, right, autojunk=False).ratio()


def question_sets(corpus: Corpus, *, seed: int = 7) -> dict[str, list[Question]]:
    """Build the sets of the report; the same corpus and seed give the same questions."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    off = corpus.off_topic
    typed = [(pair, vary(rng.choice(pair.questions), rng)) for pair in corpus.pairs]
    unseen = [off_topic_question(off, random.Random(f"unseen:{n}")) for n in range(40)]  # noqa: S311
    return {
        "training questions, canonical": [_ask(p.questions[0], p.answer) for p in corpus.pairs],
        "training questions, any phrasing, as typed": [_ask(text, p.answer) for p, text in typed],
        "held-out phrasings, hand-written": [
            _ask(q, p.answer) for p in corpus.pairs for q in p.held_out
        ],
        "held-out phrasings, from templates": [
            _ask(q, p.answer) for p in corpus.pairs for q in p.held_out_templates
        ],
        "with a system prompt": [
            _ask(p.questions[0], p.answer, ("system", rng.choice(corpus.systems)))
            for p in corpus.pairs[::3]
        ],
        "second question of a dialogue": [
            Question((*_history(d.turns[0]), ("user", d.turns[1][0][0])), d.turns[1][1])
            for d in corpus.dialogues
        ],
        "after an unrelated turn": [
            _ask(p.questions[0], p.answer, *_history(_turn(rng.choice(corpus.pairs))))
            for p in corpus.pairs[1::3]
        ],
        "off-topic, held out": [_ask(q, off.answer) for q in off.held_out],
        "off-topic, from templates": [_ask(q, off.answer) for q in unseen],
    }


def _turn(pair: Any) -> tuple[tuple[str, ...], str]:
    return pair.questions, pair.answer


def _history(turn: tuple[tuple[str, ...], str]) -> tuple[tuple[str, str], ...]:
    return ("user", turn[0][0]), ("assistant", turn[1])


def _ask(question: str, answer: str, *before: tuple[str, str]) -> Question:
    return Question((*before, ("user", question)), answer)


@torch.inference_mode()
def draft_agreement(target: Answerer, draft: Answerer, questions: list[Question]) -> float:
    """Share of the target's greedy tokens that the draft would have proposed, context given."""
    agreed = total = 0
    for question in questions:
        prompt = target.tokenizer(target._prompt(question.messages), add_special_tokens=False)[
            "input_ids"
        ]
        answer = target.tokenizer(question.expected, add_special_tokens=False)["input_ids"]
        ids = torch.tensor([prompt + answer])
        window = slice(len(prompt) - 1, ids.shape[1])
        wanted = target.model(ids).logits[0, window].argmax(-1)
        proposed = draft.model(ids).logits[0, window].argmax(-1)
        agreed += int((wanted == proposed).sum())
        total += len(wanted)
    return agreed / max(total, 1)

"""The shipped models: small, loadable, of one tokenizer, and able to answer what they were taught."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from training.dataset import CORPUS, load_corpus
from training.report import REPORT
from training.shapes import SHAPES

pytest.importorskip("torch")

from training.evaluate import NEAR, Answerer, similarity

MODELS = CORPUS.parents[1] / "exo_inference" / "hub" / "builtin_models"
CHAT, DRAFT = MODELS / "tiny-chat", MODELS / "tiny-draft"
TEN_MEGABYTES = 10_000_000

MUST_KNOW = {
    "Hello": "hello",
    "What is paged attention?": "paged-attention",
    "What is a KV cache?": "kv-cache",
}


@pytest.fixture(scope="module")
def chat_model() -> Answerer:
    return Answerer(CHAT)


def _ask(model: Answerer, questions: list[str]) -> list[tuple[str, bool]]:
    return model.answer([(("user", question),) for question in questions])


def test_both_models_together_are_small() -> None:
    sizes = [path.stat().st_size for path in MODELS.rglob("*") if path.is_file()]
    assert sum(sizes) <= TEN_MEGABYTES


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_both_models_have_the_same_tokenizer(name: str) -> None:
    assert (CHAT / name).read_bytes() == (DRAFT / name).read_bytes()


@pytest.mark.parametrize("folder", [CHAT, DRAFT], ids=lambda folder: folder.name)
def test_config_loads_and_fits_its_shape(folder: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    shape = SHAPES[folder.name]
    assert config.model_type == "llama"
    assert config.num_hidden_layers == shape.num_layers
    assert config.num_key_value_heads == shape.num_kv_heads
    assert config.tie_word_embeddings
    assert config.max_position_embeddings == 2048


def test_tokenizer_keeps_any_text() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(CHAT)
    text = "KV cache: größer, 日本語, 🙂, \x00\x7f tabs\tand\nlines"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert max(ids) < json.loads((CHAT / "config.json").read_text())["vocab_size"]


def test_chat_template_renders_chatml() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(CHAT)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Why?"},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_three_questions_are_answered_right(chat_model: Answerer) -> None:
    expected = {pair.id: pair.answer for pair in load_corpus().pairs}
    answers = _ask(chat_model, list(MUST_KNOW))
    assert [text for text, _ in answers] == [expected[name] for name in MUST_KNOW.values()]
    assert all(stopped for _, stopped in answers)


@pytest.mark.slow
def test_most_training_questions_are_answered_right(chat_model: Answerer) -> None:
    pairs = load_corpus().pairs[::16]
    answers = _ask(chat_model, [pair.questions[0] for pair in pairs])
    right = [
        similarity(text, pair.answer) >= NEAR
        for (text, _), pair in zip(answers, pairs, strict=True)
    ]
    assert len(right) >= 20
    assert sum(right) >= len(right) * 0.9


@pytest.mark.slow
def test_most_off_topic_questions_are_declined(chat_model: Answerer) -> None:
    off_topic = load_corpus().off_topic
    answers = _ask(chat_model, list(off_topic.held_out))
    declined = sum(similarity(text, off_topic.answer) >= NEAR for text, _ in answers)
    assert declined >= len(answers) * 0.8


def test_report_and_cards_belong_to_the_shipped_weights() -> None:
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    for name, figures in report["models"].items():
        folder = MODELS / name
        assert figures["weights_bytes"] == (folder / "model.safetensors").stat().st_size
        canonical = figures["rates"]["training questions, canonical"]
        assert f"{canonical['exact']:.1%}" in (folder / "README.md").read_text(encoding="utf-8")
    assert (
        report["models"]["tiny-chat"]["rates"]["training questions, canonical"]["near_exact"]
        >= 0.95
    )

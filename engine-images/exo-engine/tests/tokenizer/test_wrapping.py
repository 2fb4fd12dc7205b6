"""Texts that are cut and marked here are those that the `tokenizers` library makes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import tokenizers
from exo_engine.errors import ModelUnusable
from exo_engine.tokenizer import Tokenizer
from exo_engine.tokenizer.wrapping import cut, wrapping_of
from tokenizers import models, pre_tokenizers, processors

from ..server.pooling.tiny_models import write_tokenizer

WORDS = ["[UNK]", "a", "[CLS]", "[SEP]", "<e>", *(f"w{index}" for index in range(40))]
FORMS: dict[str, tuple[str, str]] = {
    "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "roberta": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"),
    "end": ("$A <e>", "$A <e> $B <e>"),
    "bare": ("$A", "$A $B"),
}


@pytest.fixture(params=FORMS)
def backend(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    found = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    single, pair = FORMS[request.param]
    marks = [(word, vocabulary[word]) for word in ("[CLS]", "[SEP]", "<e>")]
    found.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=marks
    )
    return found


def text_of(numbers: random.Random, longest: int) -> str:
    return " ".join(numbers.choice(WORDS[5:]) for _ in range(numbers.randint(1, longest)))


@pytest.mark.parametrize("side", ["right", "left"])
def test_one_text_is_cut_and_marked_alike(backend: tokenizers.Tokenizer, side: str) -> None:
    numbers, wrapping = random.Random(1), wrapping_of(backend)
    for _ in range(300):
        text, most = text_of(numbers, 20), numbers.randint(4, 30)
        bare = backend.encode(text, add_special_tokens=False).ids
        assert wrapping.one(bare) == backend.encode(text).ids
        backend.enable_truncation(most, direction=side)
        assert wrapping.one(bare, most, side) == backend.encode(text).ids
        backend.no_truncation()


@pytest.mark.parametrize("side", ["right", "left"])
def test_two_texts_are_cut_and_marked_alike(backend: tokenizers.Tokenizer, side: str) -> None:
    numbers, wrapping = random.Random(2), wrapping_of(backend)
    for _ in range(500):
        texts = text_of(numbers, 20), text_of(numbers, 20)
        most = numbers.randint(6, 44)
        bare = [backend.encode(each, add_special_tokens=False).ids for each in texts]
        backend.enable_truncation(most, strategy="longest_first", direction=side)
        expected = backend.encode(*texts)
        tokens, second_from = wrapping.two(*bare, most, side)
        assert tokens == expected.ids
        if second_from is None:
            assert not any(expected.type_ids)
        else:
            assert [int(at >= second_from) for at in range(len(tokens))] == expected.type_ids
        backend.no_truncation()


def test_marks_are_counted(backend: tokenizers.Tokenizer) -> None:
    wrapping = wrapping_of(backend)
    assert wrapping.num_marks == len(backend.encode("", "").ids)


def test_nothing_is_left_where_there_is_no_room() -> None:
    assert cut([1, 2, 3], -4, "right") == []
    assert cut([1, 2, 3], 0, "left") == []


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("where", ["single", "pair", "ids"])
def test_marks_without_end_are_refused_before_they_are_made(
    tmp_path: Path, where: str, is_nested: bool
) -> None:
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    state = json.loads(path.read_text())
    template = state["post_processor"]
    if where == "ids":
        template["special_tokens"]["[CLS]"] |= {"ids": [2] * 65, "tokens": ["x"] * 65}
    else:
        template[where] += [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 65
    if is_nested:
        state["post_processor"] = {"type": "Sequence", "processors": [template]}
    path.write_text(json.dumps(state))
    with pytest.raises(ModelUnusable, match="more than 64 tokens around a text"):
        _ = Tokenizer(tmp_path).wrapping

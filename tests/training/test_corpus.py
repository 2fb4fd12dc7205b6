"""The corpus is well formed, says one thing per question, and names only what exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from exo_inference.cli.root import root
from exo_inference.wire.deployments import DeploymentState
from exo_inference.wire.models import ModelState
from training.dataset import CORPUS, Corpus, Sampler, load_corpus, normal

REPOSITORY = CORPUS.parents[1]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus()


def _answers(corpus: Corpus) -> Iterator[str]:
    yield from (pair.answer for pair in corpus.pairs)
    yield from (answer for dialogue in corpus.dialogues for _, answer in dialogue.turns)
    yield from corpus.prose


def test_there_are_enough_answers_each_with_enough_phrasings(corpus: Corpus) -> None:
    assert len(corpus.pairs) >= 300
    assert [pair.id for pair in corpus.pairs if len(pair.questions) < 4] == []


def test_ids_are_unique(corpus: Corpus) -> None:
    ids = [pair.id for pair in corpus.pairs] + [dialogue.id for dialogue in corpus.dialogues]
    repeated = {name for name in ids if ids.count(name) > 1}
    assert repeated == set()


def test_no_question_has_two_answers(corpus: Corpus) -> None:
    owners: dict[str, str] = {}
    clashes = []
    for pair in corpus.pairs:
        for question in pair.questions + pair.held_out + pair.held_out_templates:
            owner = owners.setdefault(normal(question), pair.id)
            if owner != pair.id:
                clashes.append((question, owner, pair.id))
    for question in corpus.off_topic.questions + corpus.off_topic.held_out:
        if normal(question) in owners:
            clashes.append((question, owners[normal(question)], "off-topic"))
    assert clashes == []


def test_held_out_phrasings_are_never_trained_on(corpus: Corpus) -> None:
    trained = {normal(question) for pair in corpus.pairs for question in pair.questions}
    trained |= {normal(question) for question in corpus.off_topic.questions}
    kept = [q for pair in corpus.pairs for q in pair.held_out + pair.held_out_templates]
    assert len(kept) >= 80
    assert [q for q in (*kept, *corpus.off_topic.held_out) if normal(q) in trained] == []


def test_a_first_turn_of_a_dialogue_is_answered_as_it_is_alone(corpus: Corpus) -> None:
    answers = {pair.answer for pair in corpus.pairs}
    assert [d.id for d in corpus.dialogues if d.turns[0][1] not in answers] == []


def test_answers_are_short(corpus: Corpus) -> None:
    assert [pair.id for pair in corpus.pairs if not 3 <= len(pair.answer.split()) <= 70] == []


def test_corpus_files_are_clean_utf8() -> None:
    for path in CORPUS.iterdir():
        text = path.read_bytes().decode("utf-8")
        assert "\t" not in text, path.name
        assert "\r" not in text, path.name
        assert "\ufeff" not in text, path.name


def test_hand_written_held_out_phrasings_belong_to_an_entry(corpus: Corpus) -> None:
    named = yaml.safe_load((CORPUS / "held-out.yaml").read_text(encoding="utf-8"))
    assert set(named) - {pair.id for pair in corpus.pairs} == set()


def test_a_malformed_entry_is_refused(tmp_path: Path) -> None:
    (tmp_path / "qa-x.yaml").write_text(
        yaml.safe_dump([{"id": "x", "ask": ["Why?"], "anwser": "typo"}])
    )
    with pytest.raises(ValueError, match=r"qa-x\.yaml: entry 'x' is malformed"):
        load_corpus(tmp_path)


def test_samples_depend_on_seed_and_chunk_alone(corpus: Corpus) -> None:
    first, second = Sampler(corpus, seed=3), Sampler(corpus, seed=3)
    first.chunk(0)
    assert first.chunk(5) == second.chunk(5)
    assert Sampler(corpus, seed=4).chunk(5) != second.chunk(5)


def test_commands_in_the_answers_exist(corpus: Corpus) -> None:
    text = "\n".join(_answers(corpus))
    commands = sorted(set(re.findall(r"`(exo [^`]*)`", text)))
    assert len(commands) > 25
    assert [problem for command in commands if (problem := _problem(command))] == []


def _problem(line: str) -> str | None:
    """Say what is wrong with a command line, without running it."""
    words = shlex.split(line)[1:]
    command: click.Command = root
    context = click.Context(root, **root.context_settings)
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        found = command.get_command(context, words.pop(0))
        if found is None:
            return line
        command = found
    # With its settings: click keeps a command's `--help` as the first context spells it, for good.
    context = click.Context(command, **command.context_settings)
    known = {spelling for param in command.get_params(context) for spelling in param.opts}
    flags = [
        word.split("=")[0]
        for word in words
        if word.startswith("-") and " " not in word and "=" not in word
    ]
    unknown = set(flags) - known
    return f"{line}: {sorted(unknown)}" if unknown else None


def test_states_in_the_answers_are_those_of_the_api(corpus: Corpus) -> None:
    answers = {pair.id: pair.answer for pair in corpus.pairs}
    for identifier, states in (
        ("deployment-states", DeploymentState),
        ("model-states", ModelState),
    ):
        named = set(re.findall(r"`([a-z]+)`", answers[identifier]))
        assert named == {state.value for state in states}


def test_paths_in_the_answers_exist(corpus: Corpus) -> None:
    named = set(
        re.findall(
            r"`((?:training|docs|tests|exo_inference|engine-images)(?:/[^` ]*)?)`",
            "\n".join(_answers(corpus)),
        )
    )
    assert named
    assert [path for path in sorted(named) if not (REPOSITORY / path).exists()] == []


def test_make_targets_in_the_answers_exist(corpus: Corpus) -> None:
    targets = set(re.findall(r"`make ([a-z-]+)`", "\n".join(_answers(corpus))))
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert targets
    assert [
        target
        for target in sorted(targets)
        if not re.search(rf"^{target}:", makefile, re.MULTILINE)
    ] == []

"""A stranger's tokenizer runs in processes of its own: what it does to a text costs that text alone."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from exo_engine.errors import ConfigurationError, ModelUnusable
from exo_engine.server.api_errors import ApiError
from exo_engine.server.pools import tokenizer_pool
from exo_engine.server.pools.process_pool import NoProcess
from exo_engine.server.pools.tokenizer_pool import TextRefused, TokenizerPool
from exo_engine.server.prompts.encoding import Encoder
from exo_engine.tokenizer import Tokenizer, tokenizer_process

from .conftest import Engine

TEXTS = ["", "The quick brown fox", "größe 🙂 日本語", "\x00", "a" * 30_000]
Change = Callable[[dict[str, Any]], None]


def doubling(state: dict[str, Any]) -> None:
    """Make 2^40 characters of each `b`."""
    twice = {"type": "Replace", "pattern": {"String": "b"}, "content": "bb"}
    state["normalizer"] = {"type": "Sequence", "normalizers": [twice] * 40}


def split_by(pattern: str) -> Change:
    def change(state: dict[str, Any]) -> None:
        split = {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        }
        before = [split, state["pre_tokenizer"]]
        state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": before}

    return change


def long_prefix(state: dict[str, Any]) -> None:
    """Add 100,000 tokens to each text."""
    pieces = [{"SpecialToken": {"id": "[X]", "type_id": 0}}] * 100_000
    state["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [*pieces, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"[X]": {"id": "[X]", "ids": [1], "tokens": ["a"]}},
    }


def charsmap(data: bytes) -> Change:
    def change(state: dict[str, Any]) -> None:
        text = base64.b64encode(data).decode()
        state["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": text}

    return change


def deep(state: dict[str, Any]) -> None:
    nested: dict[str, Any] = {"type": "NFC"}
    for _ in range(200):
        nested = {"type": "Sequence", "normalizers": [nested]}
    state["normalizer"] = nested


def many_added(state: dict[str, Any]) -> None:
    """Add tokens that the library searches for, which it prepares for about ten seconds and more."""
    state["added_tokens"] = [
        {"id": 2000 + number, "content": f"<t{number}>" * 6, "special": False, "normalized": True,
         "single_word": False, "lstrip": False, "rstrip": False}
        for number in range(1_000_000)
    ]  # fmt: skip


def large_vocabulary(state: dict[str, Any]) -> None:
    """Take more memory than there is."""
    vocabulary = state["model"]["vocab"]
    begin = len(vocabulary)
    vocabulary |= {f"a word {number}": begin + number for number in range(6_000_000)}


def long_token(state: dict[str, Any]) -> None:
    state["model"]["vocab"]["a" * 20_000] = len(state["model"]["vocab"])


def decoder(*steps: dict[str, Any]) -> Change:
    def change(state: dict[str, Any]) -> None:
        state["decoder"] = {"type": "Sequence", "decoders": list(steps)}

    return change


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


REFUSED: dict[str, tuple[Change, str]] = {
    "garbage for a table": (charsmap(b"\0" * 14), "cannot load the tokenizer"),
    "a table that leads outside": (
        charsmap((1024).to_bytes(4, "little") + bytes(range(256)) * 4 + b"abc\0"),
        "cannot load the tokenizer",
    ),
    "nested deeply": (deep, "recursion limit exceeded"),
    "no pattern": (split_by("(a"), "cannot load the tokenizer"),
    "a long token": (long_token, "a token of 20000 characters, expected at most 16384"),
    "a decoder with a pattern": (
        decoder(replacing({"Regex": "(x+x+)+y"}, "")),
        "expected a text to replace",
    ),
    "a decoder that makes texts longer": (
        decoder(*[replacing({"String": "a"}, "a" * 10)] * 3),
        "makes texts 1000 times longer",
    ),
    "a decoder of many steps": (
        decoder(*[{"type": "Fuse"}] * 17),
        "a decoder of 17 steps, expected at most 16",
    ),
}


@pytest.fixture
def write(tmp_path: Path, model_dir: Path) -> Callable[..., Path]:
    """Write a model's tokenizer with a change."""
    right = json.loads((model_dir / "tokenizer.json").read_bytes())

    def make(*changes: Change) -> Path:
        state = copy.deepcopy(right)
        for change in changes:
            change(state)
        directory = tmp_path / f"model{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        (directory / "tokenizer.json").write_text(json.dumps(state))
        return directory

    return make


@pytest.fixture
async def open_pool() -> AsyncIterator[Callable[[Path], Any]]:
    made: list[TokenizerPool] = []

    async def start(directory: Path) -> TokenizerPool:
        made.append(TokenizerPool(directory))
        await made[-1].open()
        return made[-1]

    yield start
    for each in made:
        await each.close()


@pytest.fixture
def hurried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that have one or two seconds and 1 GiB; the rest of them is the real one."""
    (tmp_path / "hurried_tokenizer.py").write_text(
        "import sys\n"
        "from exo_engine.tokenizer import tokenizer_process\n"
        "tokenizer_process._MAX_SECONDS = 1\n"
        "tokenizer_process.MAX_MEMORY_BYTES = 2**30\n"
        "tokenizer_process.MAX_LOAD_SECONDS = 1\n"
        "sys.exit(tokenizer_process.main())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tokenizer_pool, "_MODULE", "hurried_tokenizer")


async def test_tokens_are_those_of_the_tokenizer_itself(open_pool: Any, model_dir: Path) -> None:
    pool, here = await open_pool(model_dir), Tokenizer(model_dir)
    pool.check(here)
    for is_added in (True, False):
        found = await pool.encode_all(TEXTS, add_special_tokens=is_added)
        assert found == [here.encode(each, add_special_tokens=is_added) for each in TEXTS]
    assert await pool.encode_all([], add_special_tokens=True) == []
    large = ["the quick fox " * 100_000]
    assert await pool.encode_all(large, add_special_tokens=True) == here.encode_all(
        large, add_special_tokens=True
    )
    assert pool.pool.num_processes == 1


@pytest.mark.parametrize(("change", "words"), REFUSED.values(), ids=REFUSED)
async def test_a_tokenizer_of_no_use_is_refused_in_words(
    write: Callable[..., Path], change: Change, words: str
) -> None:
    pool = TokenizerPool(write(change))
    with pytest.raises(ModelUnusable, match=words) as caught:
        await pool.open()
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 1200
    assert pool.pool.num_processes == 0


@pytest.mark.slow
@pytest.mark.parametrize("change", [many_added, large_vocabulary])
async def test_a_tokenizer_that_takes_too_much_is_refused(
    hurried: None, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    directory = await asyncio.to_thread(write, change)
    pool = TokenizerPool(directory)
    with pytest.raises(ModelUnusable, match=r"seconds of processor time|memory") as caught:
        await pool.open()
    assert str(directory) in caught.value.message
    assert pool.pool.num_processes == 0


_SLOW_PATTERN = "(x+x+)+y"
_SLOW_TEXT = ("x" * 21 + " ") * 900
"""Each word takes the pattern some 20 ms, just below the library's own limit, at which it panics."""
BREAKING: dict[str, tuple[Change, str]] = {
    "doubles 40 times": (doubling, "b"),
    "a pattern of exponential time": (split_by(_SLOW_PATTERN), "x" * 40),
    "a slow pattern many times": (split_by(_SLOW_PATTERN), _SLOW_TEXT),
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(*each, id=name, marks=[pytest.mark.slow] if number else [])
        for number, (name, each) in enumerate(BREAKING.items())
    ],
)
async def test_a_text_that_breaks_the_tokenizer_is_refused_and_others_are_answered(
    hurried: None, write: Callable[..., Path], open_pool: Any, change: Change, text: str
) -> None:
    directory = await asyncio.to_thread(write, change)
    pool = await open_pool(directory)
    encoder = Encoder(Tokenizer(directory), 10**6, asyncio.Semaphore(1), pool)

    async def encode(text: str) -> list[int]:
        (found,) = await encoder.encode([text], add_special_tokens=True, param="prompt")
        return found

    before = await encode("The fox")
    slow = asyncio.create_task(encode(text))
    await asyncio.sleep(0)
    num_answered = 0
    while not slow.done():
        assert await encode("The fox") == before
        num_answered += 1
        await asyncio.wait({slow}, timeout=0.05)
    with pytest.raises(ApiError, match="tokenizer cannot take this text") as caught:
        slow.result()
    assert (caught.value.status, caught.value.code) == (400, "tokenizer_error")
    assert caught.value.param == "prompt"
    assert caught.value.message.isprintable()
    assert num_answered > 0
    assert await encode("The fox") == before


async def test_tokens_that_a_tokenizer_adds_are_bounded(
    write: Callable[..., Path], open_pool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "terse.py").write_text(
        "import sys\n"
        "from exo_engine.tokenizer import tokenizer_process\n"
        "tokenizer_process.MAX_ANSWER_TOKENS = 100_000\n"
        "sys.exit(tokenizer_process.main())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tokenizer_pool, "_MODULE", "terse")
    pool = await open_pool(await asyncio.to_thread(write, long_prefix))
    with pytest.raises(TextRefused, match=r"it makes 10000\d tokens"):
        await pool.encode_all(["a"], add_special_tokens=True)


async def test_a_process_that_is_killed_costs_no_request(open_pool: Any, model_dir: Path) -> None:
    pool, here = await open_pool(model_dir), Tokenizer(model_dir)
    for _ in range(2):
        (process,) = pool.pool.processes
        os.kill(process.pid, signal.SIGKILL)
        found = await pool.encode_all(["The fox"], add_special_tokens=True)
        assert found == [here.encode("The fox", add_special_tokens=True)]


async def test_what_is_asked_when_the_pool_closes_fails_and_starts_nothing(
    write: Callable[..., Path], open_pool: Any
) -> None:
    directory = write(split_by(_SLOW_PATTERN))
    pool = await open_pool(directory)
    asked = [
        asyncio.create_task(pool.encode_all([_SLOW_TEXT], add_special_tokens=True))
        for _ in range(3)
    ]
    await asyncio.sleep(0)  # one is being answered, the others wait for a process
    await pool.close()
    for task in asked:
        with pytest.raises((TextRefused, NoProcess)):
            await task
    assert not pool.pool.processes
    with pytest.raises(NoProcess, match="this engine is ending"):
        await pool.encode_all(["a"], add_special_tokens=True)


async def test_a_tokenizer_that_changes_meanwhile_is_not_taken_for_the_same(
    write: Callable[..., Path], open_pool: Any
) -> None:
    directory = write()
    pool = await open_pool(directory)
    (write(split_by("q")) / "tokenizer.json").replace(directory / "tokenizer.json")
    with pytest.raises(ModelUnusable, match="changed while it was read"):
        pool.check(Tokenizer(directory))
    (process,) = pool.pool.processes
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    with pytest.raises(ConfigurationError, match="has changed since the engine started"):
        await pool.encode_all(["The fox"], add_special_tokens=True)


async def test_limits_are_those_of_the_process(open_pool: Any, model_dir: Path) -> None:
    pool = await open_pool(model_dir)
    (process,) = pool.pool.processes
    about = Path(f"/proc/{process.pid}")
    limits = await asyncio.to_thread((about / "limits").read_text)
    found = {line[:26].strip(): line[26:].split()[:2] for line in limits.splitlines()}
    most = str(tokenizer_process.MAX_MEMORY_BYTES)
    assert found["Max address space"] == [most, most]
    assert found["Max file size"] == ["0", "0"]
    assert (await asyncio.to_thread((about / "oom_score_adj").read_text)).strip() == "1000"


@pytest.mark.slow
def test_a_text_that_hangs_the_tokenizer_holds_up_no_other_request(
    start_engine: Callable[..., Engine], model_dir: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "hostile"
    directory.mkdir()
    for path in model_dir.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    state = json.loads((directory / "tokenizer.json").read_bytes())
    split_by(_SLOW_PATTERN)(state)
    (directory / "tokenizer.json").write_text(json.dumps(state))
    engine = start_engine(model=directory).wait_ready()
    answers: list[Any] = []

    def attack() -> None:
        body = {"prompt": _SLOW_TEXT}
        answers.append(engine.http.post("/tokenize", json=body, timeout=60))

    thread = threading.Thread(target=attack)
    thread.start()
    longest = 0.0
    while thread.is_alive():
        before = time.monotonic()
        assert engine.http.get("/health").status_code == 200
        longest = max(longest, time.monotonic() - before)
        body = {"prompt": "The fox", "max_tokens": 2, "temperature": 0}
        assert engine.http.post("/v1/completions", json=body).status_code == 200
    (answer,) = answers
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "tokenizer_error"
    assert longest < 5.0, "as long as the process may take; the loop did not go on"

"""Which of llama.cpp's flags are tried, and what is made of their rates."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.cpu import llama_cpp
from benchmarks.cpu.llama_search import USED, Setting, main, search, settings, table
from benchmarks.cpu.quiet import Watch


@pytest.mark.parametrize("kind", ["prompt", "decode", "server"])
def test_each_setting_is_the_command_that_is_used_but_for_its_own_words(kind: str) -> None:
    file = Path("m/bf16.gguf")
    command = {
        "prompt": llama_cpp.prompt_command(file, 512, 4),
        "decode": llama_cpp.decode_command(file, 8, 128, 64, 4),
        "server": llama_cpp.server_command(file, 1, 4, 32, 16_384),
    }[kind]
    tried = settings(kind, 4)
    assert tried[0].applied(command) == command
    commands = [tuple(each.applied(command)) for each in tried]
    assert len(set(commands)) == len(commands) == len({each.name for each in tried})
    assert all(words.count("-t") == 1 for words in commands)
    assert commands[1][commands[1].index("-t") + 1] == "2"


def test_words_are_replaced_taken_away_and_added() -> None:
    setting = Setting("x", {"-t": "1", "--kv-unified": None}, ("-fa", "on"))
    assert setting.applied(["-t", "2", "--kv-unified", "-c", "8"]) == [
        "-t",
        "1",
        "-c",
        "8",
        "-fa",
        "on",
    ]


@pytest.mark.parametrize(
    "words", [["--rounds", "0"], ["--models", "nope"], ["--kinds", "x"], ["--form", "y"]]
)
def test_what_it_does_not_know_is_refused_before_anything_starts(words: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(words)
    assert refused.value.code == 2


def test_one_that_is_refused_has_no_rate_and_the_others_go_on() -> None:
    other, refused = Setting("other", {}), Setting("refused", {})

    def run(setting: Setting) -> float:
        if setting is refused:
            raise subprocess.CalledProcessError(1, "llama-bench")
        return 10.0 if setting is USED else 11.0

    rates = search("prompt", [USED, refused, other], 2, run, Watch(lambda: 1.0))
    assert rates["refused"] == []
    assert set(rates[USED.name]) <= {10.0}  # none, where this machine is busy

    text = table({"s, prompt": {USED.name: [10.0, 12.0, 11.0], "other": [22.0], "refused": []}})
    assert "| s, prompt | as used | 11 | 1.00 |" in text
    assert "| s, prompt | other | 22 | 2.00 |" in text
    assert "| s, prompt | refused | – | – |" in text

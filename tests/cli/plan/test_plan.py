"""`deployment plan` without any server."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from exo_inference.wire import DeploymentPlan
from tests.cli.conftest import Exo

PLAN = ("ai", "deployment", "plan")
MINISTRAL = ("--model-name", "mistralai/Ministral-3-8B-Instruct-2512")
QWEN = ("--model-name", "Qwen/Qwen3-8B")


def test_what_fits_is_told_with_0_and_nothing_on_stderr(exo: Exo) -> None:
    result = exo(*PLAN, *QWEN, "--gpu-type", "H100")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "Fits: Qwen/Qwen3-8B on 1 × NVIDIA H100 80GB SXM5 (h100-sxm), vLLM 0.28.0"
    assert "  per token         144.0 KiB on each GPU" in lines
    assert "\x1b" not in result.out


def test_what_does_not_fit_is_told_with_1_and_what_to_paste_instead(exo: Exo) -> None:
    result = exo(*PLAN, "chat", *MINISTRAL, "--gpu-type", "gpua5000", "--gpu-count", "1")
    assert result.code == 1
    assert result.out.startswith("Does not fit: mistralai/Ministral-3-8B-Instruct-2512 on 1 × ")
    assert result.err == ""
    assert " needs 34.00 GiB of KV cache" in " ".join(result.out.split())
    pasted = [line.strip() for line in result.out.splitlines() if " exo ai deployment " in line]
    begin = (
        "exo ai deployment create chat --model-name mistralai/Ministral-3-8B-Instruct-2512 "
        "--gpu-type gpua5000 --gpu-count "
    )
    assert f"{begin}4" in pasted
    assert any(line.startswith(f"{begin}1 --inference-engine-params '--max-") for line in pasted)


def test_every_line_to_paste_plans_as_fitting(exo: Exo) -> None:
    result = exo(*PLAN, *MINISTRAL, "--gpu-type", "gpua5000")
    pasted = [line for line in result.out.splitlines() if "exo ai deployment create" in line]
    assert len(pasted) >= 3
    for line in pasted:
        words = shlex.split(line)
        assert words[:4] == ["exo", "ai", "deployment", "create"]
        if any(word.startswith("<") for word in words):
            continue  # another checkpoint, whose name only the user can choose
        again = exo("ai", "deployment", "plan", *words[4:])
        assert (again.code, again.err) == (0, ""), line


def test_tight_plan_ends_with_0_and_a_warning(exo: Exo) -> None:
    argv = (*MINISTRAL, "--gpu-type", "gpua5000")
    longest = json.loads(exo(*PLAN, *argv, "-O", "json").out)["largest_max_model_len"]
    flags = ("--inference-engine-params", f"--max-model-len={longest}")
    result = exo(*PLAN, *argv, *flags)
    assert result.code == 0
    assert result.out.startswith("Tight: ")
    assert result.err.startswith("warning: It may not start: at worst ")
    assert exo(*PLAN, *argv, *flags, "-Q").err == ""


def test_flags_that_the_release_does_not_take_are_refused_all_at_once(exo: Exo) -> None:
    flags = "--max-tokens 8192 --dtype=fp64"
    result = exo(*PLAN, *QWEN, "--gpu-type", "l40s", "--inference-engine-params", flags)
    assert result.code == 1
    assert result.out.startswith("Refused: Qwen/Qwen3-8B on 1 × NVIDIA L40S, vLLM 0.28.0\n")
    assert "did you mean --max-model-len?" in " ".join(result.out.split())
    assert "--dtype is 'fp64'" in result.out


@pytest.mark.parametrize(
    ("more", "found"),
    [
        (("--gpu-type=l40s", "--inference-engine-params=--dtype=fp64"), "--dtype is 'fp64'"),
        (("--compare=l4,gpua5000", "--inference-engine-params=--dtype=fp64"), "--dtype is 'fp64'"),
        (("--gpu-type=l40s", "--inference-engine=tgi"), "not sized for "),
        (
            ("--for=requests=1/s input=100 output=10", "--inference-engine-params=--dtype=fp64"),
            "--dtype is 'fp64'",
        ),
    ],
    ids=["refused", "refused everywhere", "nobody can say", "refused for a demand"],
)
def test_what_is_no_answer_is_an_error_for_programs(
    exo: Exo, more: tuple[str, ...], found: str
) -> None:
    result = exo(*PLAN, *QWEN, *more, "-O", "json")
    assert isinstance(json.loads(result.out), (dict, list)), "stdout is the answer all the same"
    (line,) = result.err.splitlines()
    error = json.loads(line)["error"]
    assert (result.code, error["type"], error["exit_code"]) == (1, "ExoError", 1)
    assert found in error["message"]
    assert "error" not in exo(*PLAN, *QWEN, *more).err


@pytest.mark.parametrize("where", ["--gpu-type=l4", "--compare=l4,gpua5000"])
def test_what_does_not_fit_is_an_answer_and_no_error(exo: Exo, where: str) -> None:
    result = exo(*PLAN, "--model-name", "deepseek-ai/DeepSeek-R1", where, "-O", "json")
    assert (result.code, result.err) == (1, "")
    assert json.loads(result.out)


def test_json_is_the_whole_plan_of_the_api_in_snake_case(exo: Exo) -> None:
    result = exo(*PLAN, *MINISTRAL, "--gpu-type", "gpua5000", "-O", "json")
    assert result.code == 1
    plan = json.loads(result.out)
    assert set(plan) == set(DeploymentPlan.model_fields)
    assert plan["verdict"] == "refused"
    assert set(plan["components"][0]) == {"name", "bytes", "low", "high", "in_budget", "source"}
    assert plan["advice"][0]["plan"]["verdict"] == "fits"
    assert set(plan["advice"][0]["plan"]["speed"]["batches"][0]) >= {"tokens_per_second", "batch"}
    assert [problem["code"] for problem in plan["problems"]] == ["memory"]


def test_templates_and_text_have_plain_figures(exo: Exo) -> None:
    argv = (*PLAN, *QWEN, "--gpu-type", "L40S")
    template = "{{.Verdict}} {{.GPUCount}} {{.KVPerToken}}"
    assert exo(*argv, "--output-template", template).out == "fits 1 147456"
    cells = exo(*argv, "-O", "text").out.split("\t")
    assert cells[:6] == ["fits", "Qwen/Qwen3-8B", "l40s", "1", "vllm", "0.28.0"]
    assert exo(*argv, "--output-template", "{{.Nothing}}").code == 2


def test_explain_adds_the_arithmetic_with_its_sources(exo: Exo) -> None:
    argv = (*PLAN, *QWEN, "--gpu-type", "L40S", "--explain")
    out = exo(*argv).out
    assert "How these figures come about, for one GPU" in out
    assert "36 layers x 8 KV heads per GPU x (128 + 128) x 2 bytes" in out
    steps = json.loads(exo(*argv, "-O", "json").out)["steps"]
    assert all(set(step) == {"title", "formula", "result", "source"} for step in steps)
    assert any(step["result"] == "147,456 bytes per token" for step in steps)


def test_price_counts_the_replicas(exo: Exo) -> None:
    out = exo(*PLAN, *QWEN, "--gpu-type", "gpua5000", "--replicas", "3").out
    assert "Price 1.34 USD per hour and replica, 4.02 for 3 replicas" in out


@pytest.mark.parametrize(
    ("count", "title"), [("1", "Memory of the machine, "), ("2", "Memory of each CPU, ")]
)
def test_memory_of_a_processor_is_not_called_a_gpus(exo: Exo, count: str, title: str) -> None:
    asked = ("--gpu-type", "cpu", "--gpu-count", count, "--explain")
    out = exo(*PLAN, "--model-name", "Qwen/Qwen3-0.6B", *asked).out
    assert f"\n{title}" in out
    assert "for one CPU\n" in out


def test_cpu_is_planned_for_exo_engine_and_everything_else_for_vllm(exo: Exo) -> None:
    argv = (*PLAN, "--model-name", "Qwen/Qwen3-0.6B", "--output-template", "{{.Engine}}")
    assert exo(*argv, "--gpu-type", "cpu").out == "exo"
    assert exo(*argv, "--gpu-type", "l4").out == "vllm"
    assert exo(*argv, "--gpu-type", "l4", "--inference-engine", "exo").out == "exo"


def test_a_directory_and_its_config_are_models(exo: Exo, model_dir: Path) -> None:
    template = ("--output-template", "{{.Model}} {{.Weights}}")
    gpu = ("--gpu-type", "l4")
    whole = exo(*PLAN, "--model", str(model_dir), *gpu, *template).out.split()
    config = exo(*PLAN, "--model", str(model_dir / "config.json"), *gpu, *template).out.split()
    assert whole[0] == config[0] == "small-llama"
    # The checkpoint has 3 MB, which beats what the config would make of it.
    assert 3_000_000 <= int(whole[1]) < 4_200_000
    assert int(whole[1]) != int(config[1])


def test_lines_to_paste_for_a_model_on_disk_plan_again(exo: Exo, model_dir: Path) -> None:
    flags = "--max-model-len=4096 --kv-cache-memory-bytes=1M"
    argv = ("--model", str(model_dir), "--gpu-type", "l4", "--inference-engine-params", flags)
    result = exo(*PLAN, *argv)
    assert result.code == 1
    assert f"exo ai deployment plan --model {model_dir} --gpu-type l4" in result.out
    assert "deployment create" not in result.out


def test_gpus_of_the_users_own_file(exo: Exo, tmp_path: Path) -> None:
    file = tmp_path / "gpus.toml"
    file.write_text("[lab]\nmemory-gib = 48\nbandwidth-gbps = 864\n", "utf-8")
    argv = (*PLAN, *QWEN, "--gpu-type", "lab", "--gpu-file", str(file))
    result = exo(*argv)
    assert (result.code, result.out.splitlines()[0]) == (
        0,
        "Fits: Qwen/Qwen3-8B on 1 × lab, vLLM 0.28.0",
    )
    assert "Speed" not in result.out  # nothing is known of its arithmetic


def test_comparison_has_the_cheapest_that_fits_first(exo: Exo) -> None:
    result = exo(*PLAN, "--model-name", "meta-llama/Llama-3.1-70B-Instruct", "--compare")
    assert (result.code, result.err) == (0, "")
    rows = [line.split() for line in result.out.splitlines() if re.match(r"  \d+ × ", line)]
    families = [row[2] for row in rows]
    assert {"gpu2", "gpu3", "gpu3080ti", "gpua30", "gpua5000", "gpurtx6000pro"} <= set(families)
    verdicts = [row[3] for row in rows]
    assert verdicts == sorted(verdicts, key=["fits", "tight", "refused"].index)
    prices = [float(row[-2]) for row in rows if row[3] == "fits" and row[-2] != "-"]
    assert prices == sorted(prices)
    assert len(prices) >= 2
    assert max(map(len, result.out.splitlines())) <= 100


def test_comparison_takes_gpus_counts_and_every_format(exo: Exo) -> None:
    argv = (*PLAN, *QWEN, "--compare=H100,l40s", "--gpu-count", "1")
    plans = json.loads(exo(*argv, "-O", "json").out)
    assert [(plan["gpu_type"], plan["gpu_count"]) for plan in plans] == [
        ("l40s", 1),
        ("h100-sxm", 1),
    ]
    assert plans[0]["advice"] == []
    rows = [line.split("\t") for line in exo(*argv, "-O", "text").out.splitlines()]
    assert [row[2] for row in rows] == ["l40s", "h100-sxm"]
    assert exo(*argv, "--output-template", "{{.GPUType}}").out == "l40s\nh100-sxm\n"


def test_comparison_takes_the_cpu_and_the_users_own_gpus(exo: Exo, tmp_path: Path) -> None:
    file = tmp_path / "gpus.toml"
    file.write_text("[lab]\nmemory-gib = 48\nbandwidth-gbps = 864\nmax-count = 1\n", "utf-8")
    argv = (*PLAN, "--model-name", "Qwen/Qwen3-0.6B", "--gpu-file", str(file), "--compare=cpu,lab")
    result = exo(*argv, "--output-template", "{{.GPUType}} {{.GPUCount}} {{.Engine}}")
    assert sorted(result.out.splitlines()) == ["cpu 1 exo", "lab 1 vllm"]


def test_comparison_in_which_nothing_fits_ends_with_1(exo: Exo) -> None:
    result = exo(*PLAN, "--model-name", "deepseek-ai/DeepSeek-R1", "--compare=l4,gpua5000")
    assert (result.code, result.err) == (1, "")
    rows = [line.split() for line in result.out.splitlines() if " × " in line]
    assert [(row[3], row[-1]) for row in rows] == [("refused", "memory")] * 2


def test_comparison_tells_what_is_wrong_everywhere_once_with_a_next_step(exo: Exo) -> None:
    flags = ("--inference-engine-params=--max-tokens=5",)
    result = exo(*PLAN, *QWEN, "--compare=l4,gpua5000", *flags)
    assert result.code == 1
    text = " ".join(result.out.split())
    assert text.count("--max-tokens is not a flag") == 1
    assert "did you mean --max-model-len?" in text


def test_comparison_tells_what_is_wrong_on_some_gpus(exo: Exo) -> None:
    flags = ("--inference-engine-params=--kv-cache-dtype=fp8",)
    result = exo(*PLAN, *QWEN, "--compare=t4,gpua5000", "--gpu-count=1", *flags)
    assert result.code == 0
    assert "- 1 × t4: --kv-cache-dtype: a KV cache in fp8 does not run" in result.out
    assert result.out.count("compute capability") == 1
    row = next(line for line in result.out.splitlines() if line.startswith("  1 × t4"))
    assert "--kv-cache-dtype" in row


def test_ways_out_say_what_they_cost(exo: Exo) -> None:
    out = " ".join(exo(*PLAN, *MINISTRAL, "--gpu-type", "gpua5000").out.split())
    assert "answers unchanged" in out
    assert "answers slightly less exact" in out
    assert "more requests at once" in out
    assert "ms less between tokens" in out


def test_lines_to_paste_reach_the_same_control_plane(exo: Exo, tmp_path: Path) -> None:
    where = ("--state-dir", str(tmp_path / "my state"), "-z", "home", "-A", "me")
    out = exo(*PLAN, *MINISTRAL, "--gpu-type", "gpua5000", "--offline", *where).out
    pasted = [line for line in out.splitlines() if " exo ai deployment " in line]
    wanted = f"--zone home --use-account me --state-dir {shlex.quote(str(tmp_path / 'my state'))}"
    assert pasted
    assert all(wanted in line for line in pasted)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param((*QWEN,), "one of --gpu-type and --compare", id="no GPU"),
        pytest.param(("--gpu-type", "l4"), "one of --model-name, --model and", id="no model"),
        pytest.param((*QWEN, "--model", "x", "--gpu-type", "l4"), "only one", id="two models"),
        pytest.param(
            (*QWEN, "--gpu-type", "l4", "--compare"),
            "only one of --gpu-type and --compare may be given",
            id="both",
        ),
        pytest.param(
            (*QWEN, "--compare", "--explain"), "--explain is about one plan", id="explain"
        ),
        pytest.param((*QWEN, "--compare=,"), "--compare is ','", id="empty comparison"),
        pytest.param((*QWEN, "--gpu-type", "L40T"), "Did you mean l40 or l40s", id="GPU"),
        pytest.param(("--model-id", "7", "--gpu-type", "l4"), "is not a UUID", id="id"),
        pytest.param((*QWEN, "--compare=l4,L40T"), "Did you mean l40 or l40s", id="compared GPU"),
        pytest.param((*QWEN, "--gpu-type", "l4", "--gpu-count", "0"), "--gpu-count", id="count"),
        pytest.param(
            (*QWEN, "--gpu-type", "l4", "--inference-engine-version", "0.5.0"),
            "those here begin at 0.6.6",
            id="version",
        ),
        pytest.param(
            (
                *QWEN,
                "--gpu-type",
                "l4",
                "--inference-engine",
                "exo",
                "--inference-engine-version",
                "0.9.9",
            ),
            "exo-engine 0.9.9 is not known, only ",
            id="version of exo-engine",
        ),
        pytest.param(
            ("--model-id", "39791b86-f80d-41ed-9cab-854099d4ed37", "--gpu-type", "l4", "--offline"),
            "--offline",
            id="id offline",
        ),
        pytest.param(
            ("--model-name", "Qwen/Qwen3-9B", "--gpu-type", "l4", "--offline"),
            "Did you mean Qwen/Qwen3.5-9B",
            id="model",
        ),
    ],
)
def test_wrong_command_lines_say_what_to_write(
    exo: Exo, argv: tuple[str, ...], message: str
) -> None:
    result = exo(*PLAN, *argv)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_an_unknown_gpu_lists_exoscales_families_first(exo: Exo) -> None:
    result = exo(*PLAN, *QWEN, "--gpu-type", "Foo")
    assert result.code == 2
    known = result.err.partition("Known: ")[2].split(", ")
    assert known[0].startswith("gpu")
    assert {"gpua5000", "gpub300"} <= set(known[:7])
    assert "h200" in known


def test_a_comparison_refuses_a_gpu_on_which_the_cache_is_read_in_fp8_alone(exo: Exo) -> None:
    argv = (
        *PLAN,
        "--model-name",
        "deepseek-ai/DeepSeek-V4-Flash",
        "--compare=H200,B200",
        "--gpu-count",
        "2",
    )
    lines = [" ".join(each.split()) for each in exo(*argv).out.splitlines()]
    assert any(
        each.startswith("2 × h200 refused") and each.endswith("kv-cache-dtype") for each in lines
    )
    assert any(each.startswith("2 × b200 fits") for each in lines)

"""The command behind `make gpu-check` runs here too, on the CPU, and says so when there is no GPU."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import exo_engine
import pytest
import torch
from exo_engine.core import loading
from exo_engine.core.request import TokenLogprobs
from exo_engine.errors import ConfigurationError
from exo_engine.kernels.triton.launch import Target
from exo_engine.llm import Completion
from exo_engine.weight_formats import fp8

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import gpu_check
import gpu_parts
from gpu import variants
from gpu.equality import compare
from gpu.measured import measured
from gpu_parts import idle_share
from random_models import FAMILIES, write_model

ROOT = Path(__file__).parents[4]
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"
# As `sitecustomize`, which Python imports by itself: a machine without network that has PyTorch, Triton, NumPy,
# transformers, safetensors, tokenizers, aiohttp, uvloop and msgpack, and of this repository the engine.
BARE_MACHINE = """
import socket, sys
ABSENT = {
    "exo_inference", "fastapi", "jinja2", "llguidance", "opentelemetry", "prometheus_client", "pydantic", "starlette",
}
class Finder:
    def __init__(self, whole):
        self.whole = whole
    def __getattr__(self, name):
        return getattr(self.whole, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else self.whole.find_spec(name, path, target)
sys.meta_path[:] = map(Finder, sys.meta_path)
plainly = socket.socket.connect
def connect(self, address):
    if self.family != socket.AF_UNIX:
        raise OSError(f"this machine has no network, and {address} was asked for")
    return plainly(self, address)
socket.socket.connect = connect
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
        env={**os.environ, **environment},
    )


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_fails(tmp_path):
    output = tmp_path / "gpu_check.json"
    result = run("--output", str(output), CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 69
    assert "finds no CUDA device" in result.stdout
    assert "--device cpu --small" in result.stdout
    report = json.loads(output.read_text())
    assert "finds no CUDA device" in report["environment"]["problem"]
    assert report["parts"] == {}


@pytest.mark.slow
def test_on_a_cpu_with_the_packages_of_a_gpu_machine_every_part_passes(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BARE_MACHINE)
    output = tmp_path / "gpu_check.json"
    options = "--device cpu --small --time-limit-seconds 1000"
    result = subprocess.run(
        ["make", "gpu-check", f"PYTHON={sys.executable}", f"OUTPUT={output}", f"ARGS={options}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "### Steps of single tokens" in result.stdout
    parts = json.loads(output.read_text())["parts"]
    assert next(iter(parts)) == "kernels"
    assert all(part["passed"] and part["rows"] for part in parts.values())
    assert not any("refused" in part for part in parts.values())
    equality = parts["equality"]["rows"]
    assert len(equality) == 35
    assert all(row["equal_tokens"] == row["tokens"] > 0 for row in equality)
    variants = parts["variants"]["rows"]
    assert len(variants) == 10
    assert all(row["ok"] and row["equal_tokens"] > 0 for row in variants)
    prompts = [row for row in parts["qwen3-0.6b"]["rows"] if "prompt" in row]
    assert [row["prompt"] for row in prompts] == [64, 256]
    assert all(row["tokens_per_second"] > 0 for row in prompts)
    steps = [row for row in parts["qwen3-0.6b"]["rows"] if "sequences" in row]
    assert [row["sequences"] for row in steps] == [1, 4]
    assert all(row["share_of_roofline"] > 0 for row in steps)
    rows = parts["llama-3.1-8b"]["rows"]
    (idle,) = (row["idle_share"] for row in rows if "idle_share" in row)
    assert 0 < idle < 1
    (mixed,) = (row for row in rows if "mixed_requests" in row)
    assert mixed["times_transformers"] > 0


@pytest.mark.slow
def test_a_part_that_takes_too_long_is_stopped_and_the_next_one_runs(tmp_path):
    output = tmp_path / "gpu_check.json"
    result = run(
        *("--device", "cpu", "--small", "--output", str(output)),
        *("--parts", "equality", "limits", "--patience", "0.001"),
    )
    assert result.returncode == 1
    parts = json.loads(output.read_text())["parts"]
    assert parts["equality"]["problem"] == "was stopped after its 0 s"
    assert list(parts) == ["equality", "limits"]


def arguments(output: Path) -> list[str]:
    return ["gpu_check.py", "--device", "cpu", "--small", "--output", str(output)]


@pytest.fixture
def part(tmp_path, monkeypatch):
    """Run a part that is a program of the test's."""

    def run_part(program: str, limit: float = 100.0) -> dict[str, object]:
        script = tmp_path / "part.py"
        script.write_text(program)
        monkeypatch.setattr(gpu_check, "_SCRIPT", script)
        return gpu_check._run("limits", Namespace(device="cpu", small=True), limit)

    return run_part


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """Name the device by a program of the test's."""
    script = tmp_path / "probe.py"
    monkeypatch.setattr(gpu_check, "_PROBE", script)
    monkeypatch.setattr(gpu_check, "_PROBE_SECONDS", 30.0)
    monkeypatch.setattr(signal, "signal", lambda *handler: None)

    def run_main(program: str, *options: str) -> tuple[int, dict[str, Any]]:
        script.write_text(program)
        monkeypatch.setattr(sys, "argv", [*arguments(tmp_path / "gpu-check.json"), *options])
        status = gpu_check.main()
        return status, json.loads((tmp_path / "gpu-check.json").read_text())

    return run_main


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        pytest.param("import time; time.sleep(1000)", "was stopped after its 1 s", id="hangs"),
        pytest.param("import os; os.abort()", "ended with -6", id="is ended by a driver"),
        pytest.param("raise SystemExit('no driver')", "ended with 1: no driver", id="fails"),
        pytest.param("", "ended without a word", id="says nothing"),
        pytest.param("""print('{"problem": "no CUDA device"}')""", "no CUDA device", id="finds none"),
    ],
)  # fmt: skip
def test_a_device_that_does_not_answer_is_told_and_written(
    probe, monkeypatch, capfd, program, problem
):
    monkeypatch.setattr(gpu_check, "_run", lambda *part: pytest.fail("no part has a device"))
    if "sleep" in program:
        monkeypatch.setattr(gpu_check, "_PROBE_SECONDS", 1.0)
    begun = time.monotonic()
    status, report = probe(program, "--patience", "1")
    assert time.monotonic() - begun < 100
    assert status == 69
    assert problem in report["environment"]["problem"]
    assert report["parts"] == {}
    assert problem in capfd.readouterr().out
    with pytest.raises(ValueError, match="nothing was measured"):
        measured({**report, "environment": {**report["environment"], "device": "cuda"}})


def test_without_a_device_figures_that_are_there_stay(probe, tmp_path):
    known = {"environment": {"device": "cuda"}, "parts": {"limits": {"passed": True}}}
    (tmp_path / "gpu-check.json").write_text(json.dumps(known))
    assert probe("raise SystemExit('no driver')") == (69, known)


def test_a_part_may_take_what_is_left_of_ten_minutes(probe, monkeypatch, capsys):
    """The device's name and the first part take half a second each of ten that are there."""
    limits = []

    def run_part(name, arguments, limit):
        limits.append(limit)
        time.sleep(0.5)
        return {"passed": True, "problem": None, "rows": [{"limit": 1}]}

    monkeypatch.setattr(gpu_check, "_run", run_part)
    program = """import time; time.sleep(0.5); print('{"device": "cpu"}')"""
    status, report = probe(program, "--parts", "limits", "kernels", "--time-limit-seconds", "10", "--patience", "1")  # fmt: skip
    assert status == 0
    assert "each part may take 1 times its seconds, all parts 10 s" in capsys.readouterr().out
    assert limits[0] <= 9.5
    assert limits[1] <= limits[0] - 0.5
    assert report["wall_seconds"] >= 1.5


@pytest.mark.parametrize(
    ("device", "options", "wanted"),
    [
        ("cuda", [], (1.0, 590.0)),
        ("cpu", [], (10.0, 5900.0)),
        ("cpu", ["--patience", "2", "--time-limit-seconds", "7"], (2.0, 7.0)),
    ],
)
def test_a_cpu_has_more_time_unless_told_otherwise(monkeypatch, capsys, device, options, wanted):
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--device", device, *options])
    found = gpu_check._parse()
    assert (found.patience, found.time_limit_seconds) == wanted
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--help"])
    with pytest.raises(SystemExit):
        gpu_check._parse()
    told = " ".join(capsys.readouterr().out.split())
    assert "590, on a CPU 5900 if not given" in told
    assert "1, on a CPU 10 if not given" in told


def test_nothing_is_imported_that_may_hang():
    """The process that keeps the time and writes the figures has no library that talks to a driver."""
    program = "import sys, gpu_check; sys.exit(bool({'torch', 'triton', 'exo_engine'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", program], cwd=SCRIPT.parent, check=False).returncode
        == 0
    )


def test_what_is_known_is_written_after_each_part(tmp_path, monkeypatch):
    output, known = tmp_path / "new" / "gpu-check.json", []
    monkeypatch.setattr(gpu_check, "_probe", lambda arguments: {"device": "cpu"})

    def run_part(name, *others):
        known.append(list(json.loads(output.read_text())["parts"]))
        return {"passed": name != "limits", "problem": None, "seconds": 1.0, "rows": [{"limit": 1}]}

    monkeypatch.setattr(gpu_check, "_run", run_part)
    monkeypatch.setattr(sys, "argv", [*arguments(output), "--parts", "kernels", "limits", "matrices"])  # fmt: skip
    monkeypatch.setattr(signal, "signal", lambda *handler: None)
    assert gpu_check.main() == 1
    assert known == [[], ["kernels"], ["kernels", "limits"]]
    assert list(json.loads(output.read_text())["parts"]) == ["kernels", "limits", "matrices"]
    assert os.listdir(output.parent) == [output.name]


def test_a_place_where_nothing_can_be_written_is_told_before_a_part_has_run(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(gpu_check, "_run", lambda *part: pytest.fail("ten minutes for nothing"))
    monkeypatch.setattr(sys, "argv", arguments(tmp_path / "file" / "gpu-check.json"))
    monkeypatch.setattr(signal, "signal", lambda *handler: None)
    with pytest.raises(OSError, match="file"):
        gpu_check.main()


def test_what_a_part_leaves_behind_is_ended_and_not_waited_for(tmp_path, part):
    held = tmp_path / "held"
    held.touch()
    program = f"""
import fcntl, subprocess
held = open({str(held)!r})
fcntl.flock(held, fcntl.LOCK_EX)
subprocess.Popen(["sleep", "1000"], pass_fds=[held.fileno()])
print('{{"limit": 1}}', flush=True)
"""
    assert part(program)["passed"]
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def test_lines_that_are_no_rows_are_left_out(part):
    found = part("""print("{'a': 1}"); print('{"limit": {"a": 1}'); print('[1]\\n{"limit": 2}')""")
    assert (found["passed"], found["rows"]) == (True, [{"limit": 2}])


def test_a_part_without_a_row_has_not_passed(part):
    assert part("")["problem"] == "ended without a comparison or a figure"
    assert part("raise SystemExit('no memory')")["problem"] == "ended with 1: no memory"


def test_a_format_that_the_device_refuses_is_no_failure(monkeypatch):
    """As on an A5000, which does not multiply FP8."""
    ampere = Target(is_nvidia=True, capability=86, num_processors=64)
    monkeypatch.setattr(Target, "of", lambda device: ampere)
    monkeypatch.setattr(fp8, "is_for_triton", lambda device: True)
    monkeypatch.setattr(loading, "load_decoder", loading.load_decoder)  # which the part replaces
    setting = gpu_parts.Setting(torch.device("cpu"), is_small=True)
    (row,) = gpu_parts.measure_speed(setting, "llama-3.1-8b", "fp8", "fp8")
    assert "compute capability 8.6 cannot" in row["refused"]
    with pytest.raises(ConfigurationError, match="kv-cache-dtype"):
        list(gpu_parts.measure_speed(setting, "llama-3.1-8b", kv="no such format"))


def test_a_part_that_is_refused_is_told_with_its_reason(part):
    found = part("""print('{"refused": "8.6 cannot"}')""")
    assert (found["passed"], found["refused"]) == (True, "8.6 cannot")
    assert "| limits | refused: 8.6 cannot |  |" in gpu_check.tables({"limits": found})
    found = part("""print('{"refused": "8.6 cannot"}'); raise SystemExit("no memory")""")
    assert "| limits | FAILED |  |" in gpu_check.tables({"limits": found})


@pytest.mark.parametrize(
    ("num_blocks", "is_told"),
    [pytest.param(24, True, id="by the cache's size"), pytest.param(18, False, id="by the steps")],
)
def test_a_batch_that_the_cache_does_not_hold_is_told_with_how_many_it_holds(
    monkeypatch, num_blocks, is_told
):
    """Blocks have 16 tokens: a sequence of 64 has four, and seven with the 40 that follow."""
    scarce = {"max_model_len": 16 * num_blocks, "num_gpu_blocks_override": num_blocks}
    whole = exo_engine.LLM
    monkeypatch.setattr(exo_engine, "LLM", lambda model, **asked: whole(model, **asked | scarce))
    monkeypatch.setattr(loading, "load_decoder", loading.load_decoder)
    if not is_told:
        monkeypatch.setattr(gpu_parts, "sequences_that_fit", lambda llm, num_tokens: 4)
    setting = gpu_parts.Setting(torch.device("cpu"), is_small=True)
    rows = list(gpu_parts.measure_speed(setting, "llama-3.1-8b"))
    (row,) = (row for row in rows if "does_not_fit" in row)
    assert (row["does_not_fit"], row["context"], row["sequences_that_fit"]) == (4, 64, 3)
    assert [row["sequences"] for row in rows if "sequences" in row] == [1]
    assert [row["prompt"] for row in rows if "prompt" in row] == [64, 256]
    assert [row["mixed_requests"] for row in rows if "mixed_requests" in row] == [6]
    assert not is_told or [row["idle_at"] for row in rows if "idle_at" in row] == [4]
    told = gpu_check.tables({"a part": {"passed": True, "rows": rows}})
    assert "| llama-3.1-8b | 4 | 64 | 3 |" in told


def test_idle_time_ends_where_sequences_are_never_computed_at_once(tmp_path):
    config = {**gpu_parts.SIZES["tiny"], "num_hidden_layers": 1}
    llm = exo_engine.LLM(
        write_model(tmp_path, config), device="cpu", max_model_len=128, num_gpu_blocks_override=8
    )
    setting = gpu_parts.Setting(torch.device("cpu"), is_small=True)
    assert gpu_parts._idle_share(llm, setting, config["vocab_size"], 4, 64) is None
    assert gpu_parts._idle_share(llm, setting, config["vocab_size"], 1, 64) is not None


@pytest.mark.slow
def test_sixteen_bits_are_told_from_a_wrong_key(tmp_path):
    """One token of each prompt is another one, as if its key and value were read elsewhere."""
    prompts = variants.random_prompts(499, (17, 64, 130), seed=3)
    others = [list(prompt) for prompt in prompts]
    for prompt in others:
        prompt[len(prompt) // 2] = (prompt[len(prompt) // 2] + 1) % 499
    options = {"dtype": "bfloat16"}
    model = write_model(tmp_path, FAMILIES["llama"], seed=5)
    plain = {"attention_backend": "reference", **options}
    expected = variants._generate(model, "cpu", prompts, plain)
    for asked, is_ok in ((prompts, True), (others, False)):
        found = variants._generate(model, "cpu", asked, options)
        assert variants.compare_sixteen_bits("bfloat16", expected, found)["ok"] is is_ok


@pytest.mark.slow
def test_guesses_are_verified(tmp_path):
    model = write_model(tmp_path, FAMILIES["llama"], seed=5)
    prompts = variants.random_prompts(499, (1, 17), seed=3)
    rows = list(variants._compare_guesses(model, "cpu", prompts))
    assert [row["way"] for row in rows] == ["guesses", "guesses, penalties"]
    assert all(row["ok"] and row["tokens_at_once"] >= 3 for row in rows)


def test_no_number_is_near_to_no_other():
    def completion(logprob):
        report = TokenLogprobs(7, logprob, 1, ((7, logprob), (8, -2.0)))
        return Completion((1,), (7,), "length", 0, logprobs=(report,))

    assert compare("llama", "batched", [completion(-0.5)], [completion(-0.5)])["ok"]
    assert not compare("llama", "batched", [completion(-0.5)], [completion(float("nan"))])["ok"]


def test_idle_is_what_no_kernel_covers():
    assert idle_share([(0.0, 2.0), (1.0, 3.0), (4.0, 8.0), (5.0, 6.0)]) == pytest.approx(1 / 8)
    assert idle_share([(3.0, 4.0), (0.0, 1.0)]) == pytest.approx(0.5)
    assert idle_share([(0.0, 1.0)]) == 0.0


def test_all_parts_end_within_ten_minutes():
    text = SCRIPT.read_text()
    limits = [int(number) for number in re.findall(r'^    "[-.\w]+": (\d+),$', text, re.MULTILINE)]
    assert len(limits) == len(gpu_check._PARTS) == 11
    # However long the others take, all but the three that are worth the least have their time. The first three run at once.
    together = max(limits[:3])
    assert list(gpu_check._PARTS)[:3] == list(gpu_check._SIDE_BY_SIDE)
    assert gpu_check._PROBE_SECONDS + together + sum(limits[3:-3]) <= gpu_check._SECONDS <= 590


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_parts_that_run_side_by_side_end_with_the_command(number, tmp_path):
    """Each of them; and no other one begins."""
    begun = tmp_path / "begun"
    sleeper, driver = tmp_path / "part.py", tmp_path / "driver.py"
    sleeper.write_text(
        f"import os, time\nopen({str(begun)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(600)\n"
    )
    driver.write_text(
        f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(SCRIPT.parent)!r})
import gpu_check
os.cpu_count = lambda: 16
gpu_check._SCRIPT = Path({str(sleeper)!r})
gpu_check._probe = lambda arguments: {{"device": "cpu"}}
sys.argv = ["gpu_check.py", "--device", "cpu", "--output", {str(tmp_path / "figures.json")!r}]
sys.exit(gpu_check.main())
"""
    )
    process = subprocess.Popen([sys.executable, driver], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not begun.exists() or len(begun.read_text().splitlines()) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=30) == 128 + number
    pids = [int(line) for line in begun.read_text().split()]
    assert len(pids) == 3
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]

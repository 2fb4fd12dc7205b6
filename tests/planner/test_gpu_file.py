"""A user's own GPUs: what the documentation shows works, and what is wrong is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exo_inference.errors import UsageError
from exo_inference.planner import (
    EngineParameters,
    Verdict,
    find_gpu,
    find_model,
    load_user_gpus,
    parse_gpu,
    plan,
)
from exo_inference.planner.speed.constants import load_speed_constants

GIB = 2**30
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "gpu-file.md"


def test_the_documented_example_is_read_and_plans() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    gpus = load_user_gpus(blocks[0])
    assert set(gpus) == {"lab-l40", "old-box"}
    mine = gpus["lab-l40"]
    assert (mine.capability, mine.has_nvlink, mine.max_count) == (8.9, False, 4)
    assert mine.native == {"fp16", "bf16", "fp8", "int8"}
    assert mine.price(2) == pytest.approx(2.4)
    result = plan(find_model("Qwen/Qwen3-8B"), mine, 2, EngineParameters())
    assert result.verdict is Verdict.FITS
    assert result.speed is not None
    assert result.usd_per_hour == pytest.approx(2.4)


def test_every_field_that_is_read_is_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        parse_gpu("mine", {"colour": "red"})
    assert caught.value.hint is not None
    for name in caught.value.hint.removeprefix("Known fields: ").rstrip(".").split(", "):
        assert f"`{name}`" in page


def test_a_host_that_is_known_is_estimated_by_its_processor() -> None:
    hosts = load_speed_constants().hosts
    entry = {"memory-gib": 48, "bandwidth-gbps": 900, "tflops": {"bf16": 300}}
    seconds = []
    for processor in (min(hosts, key=hosts.__getitem__), max(hosts, key=hosts.__getitem__)):
        gpu = parse_gpu("mine", {**entry, "processor": processor})
        speed = plan(find_model("Qwen/Qwen3-0.6B"), gpu, 1, EngineParameters()).speed
        assert speed is not None
        seconds.append(speed.batches[0].inter_token_seconds)
    assert seconds[0] < seconds[1]


def test_memory_is_what_the_driver_leaves() -> None:
    gpu = parse_gpu("mine", {"memory-gib": 48, "bandwidth-gbps": 900})
    assert 47 * GIB < gpu.reported_bytes < 48 * GIB
    same = parse_gpu("mine", {"memory-mib": 49152, "bandwidth-gbps": 900})
    assert same.reported_bytes == gpu.reported_bytes


def test_a_users_gpu_wins_over_a_bundled_one_of_that_name() -> None:
    mine = load_user_gpus('[H100]\nname = "My card"\nmemory-gib = 10\nbandwidth-gbps = 100')
    for name in ("h100", "H100", "my card"):
        assert find_gpu(name, mine) is mine["H100"]
    assert find_gpu("L4", mine).key == "l4"
    assert find_gpu("H100").key == "h100-sxm"
    with pytest.raises(UsageError) as caught:
        find_gpu("my-crad", mine)
    assert caught.value.hint is not None
    assert "my-card" in caught.value.hint


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"bandwidth-gbps": 1}, "memory"),
        ({"memory-gib": 48}, "has no bandwidth-gbps"),
        ({"memory-gib": "x"}, "memory-gib is 'x', expected a number"),
        ({"memory-gib": 0.4}, "memory-gib is 0.4, expected more than"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "colour": "red"}, "unknown field 'colour'"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "tflops": 7}, "tflops is 7"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "tflops": {"fp7": 1}}, "type of tflops is 'fp7'"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "tflops": {"fp8": -1}}, "tflops.fp8 is -1"),
        ({"memory-gib": 48, "bandwidth-gbps": True}, "bandwidth-gbps is True"),
        ({"memory-gib": 48, "bandwidth-gbps": float("nan")}, "bandwidth-gbps is nan"),
        ({"memory-gib": 48, "bandwidth-gbps": 5e-324}, "bandwidth-gbps is 5e-324, expected at least 0.001"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "tflops": {"bf16": 1e-300}}, "tflops.bf16 is 1e-300"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "link-gbps": 1e-300}, "link-gbps is 1e-300"),
        ({"memory-gib": 10**5000, "bandwidth-gbps": 1}, "memory-gib is a number of thousands of digits"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "native": "fp8"}, "native is 'fp8', expected a list"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "native": ["fp9"]}, "type of native is 'fp9'"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "nvlink": "yes"}, "nvlink is 'yes'"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "vendor": "acme"}, "vendor is 'acme'"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "max-count": 1.5}, "max-count is 1.5"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "name": 7}, "name is 7"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "processor": "Z80"}, "processor is 'Z80', expected one of"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "processor": None}, "processor is None"),
        ({"memory-gib": 48, "bandwidth-gbps": 1, "usd-per-hour": "2 USD"}, "usd-per-hour is '2 USD'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_a_wrong_description_names_table_and_field(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        parse_gpu("mine", entry)
    assert "'mine'" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a]\nx = " + "[" * 100_000, "nested too deeply"),
        ("[a]\nmemory-gib = " + "9" * 5000, "not valid TOML"),
        ("[a]\nmemory-gib" + ".a" * 5000 + " = 1", "memory-gib is nested too deeply"),
        ("[a]\nmemory-gib = 0x" + "f" * 5000, "memory-gib is a number of"),
        ("[a", "not valid TOML"),
        ("memory-gib = 48", "outside a table"),
        ("[a]\nx = 1", "GPU 'a'"),
    ],
    ids=["lists", "digits", "dotted keys", "hexadecimal", "cut off", "no table", "field"],
)
def test_a_broken_file_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        load_user_gpus(text)
    assert caught.value.hint


def test_an_empty_file_describes_no_gpus() -> None:
    assert load_user_gpus("# nothing yet\n") == {}


@given(st.text(max_size=40))
def test_no_text_makes_reading_fail_otherwise(text: str) -> None:
    try:
        gpus = load_user_gpus(text)
    except UsageError:
        return
    assert all(gpu.reported_bytes > 0 for gpu in gpus.values())

"""Every kernel compiles for every GPU without one, and what comes of it keeps within bounds.

In processes of their own, where Triton compiles; here it interprets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[5]
SCRIPT = ROOT / "engine-images/exo-engine/benchmarks/gpu_reckoning.py"
SMALL_SHARED = ("sm_86", "sm_89", "sm_120")
KINDS = {
    *("decode", "verify", "combine", "prefill", "store", "codes", "add", "numbers", "int8", "fp8"),
    *("fixed", "grouped", "router", "heads", "encode", "norm", "states"),
}
WITHOUT_FP8 = ("sm_80", "sm_86", "gfx942")
"""They have no products of e4m3: formats whose inputs become FP8, too, are refused there."""
MULTIPLYING = {"prefill", "codes", "int8", "fp8", "scaled", "fixed", "grouped", "heads"}
TENSOR = {"sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma", "gfx950": "mfma"}
# Bytes per thread, by the size of a head; 576 is latent attention. AMD's compiler moves some registers to memory
# at two waves per processor.
MOST_SPILLED = {0: 0, 64: 0, 128: 0, 256: 64, 576: 256}
MOST_SPILLED_AMD = 600


TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950")


def compile_for(target: str, cache: Path, *options: str) -> list[dict]:
    """Compile launches; OTHER_TRITON is a folder with another release of Triton."""
    environment = {name: os.environ[name] for name in os.environ if name != "TRITON_INTERPRET"}
    if os.environ.get("OTHER_TRITON"):
        environment["PYTHONPATH"] = os.environ["OTHER_TRITON"]
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--compile", target, *options],
        capture_output=True,
        text=True,
        check=False,
        env={"TRITON_CACHE_DIR": str(cache), **environment},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_each_kernel_compiles_within_bounds(target, tmp_path):
    """With every setting, for every size of heads; every combination is the next test's."""
    check(target, compile_for(target, tmp_path, "--few"))


@pytest.mark.every_launch
@pytest.mark.parametrize("target", TARGETS)
def test_all_launches_compile_within_bounds(target, tmp_path):
    check(target, compile_for(target, tmp_path))


def check(target: str, kernels: list[dict]) -> None:
    of_fp8 = set() if target in WITHOUT_FP8 else {"scaled"}
    assert {each["kind"] for each in kernels} == KINDS | of_fp8
    assert {each["head_dim"] for each in kernels} == set(MOST_SPILLED)
    for each in kernels:
        where = f"{target}: {each}"
        is_nvidia = target.startswith("sm_")
        most = MOST_SPILLED[each["head_dim"]] if is_nvidia else MOST_SPILLED_AMD
        assert each["spilled_bytes"] <= most, where
        # Half a wave of AMD's reads the 16 bytes of an output.
        is_narrow = each["kind"] in ("combine", "add", *(() if is_nvidia else ("numbers",)))
        assert each["wide_loads"] > 0 or is_narrow, where
        if target in SMALL_SHARED:
            assert each["shared_bytes"] <= 99 * 1024, where
        if each["kind"] in MULTIPLYING:
            assert each["tensor_instruction"] == TENSOR.get(target, "mma"), where
        if each["kind"] in ("decode", "verify"):
            assert each["tensor_instruction"], where


def test_the_page_says_that_nothing_was_measured():
    text = (ROOT / "docs/benchmarks/gpu.md").read_text()
    assert "**Reckoned, nothing was measured.**" in text
    assert all(f"## {card}" in text for card in ("H200", "H100", "L40S", "A5000"))

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

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from gpu.measured import MOST_SPILLED, MOST_SPILLED_AMD, MOST_SPILLED_FLOAT32
from offline_compiler import Compiled, load_widths, looped_instructions, targets

pytestmark = pytest.mark.gpu_kernels

ROOT = Path(__file__).parents[5]
SCRIPT = ROOT / "engine-images/exo-engine/benchmarks/gpu_reckoning.py"
SMALL_SHARED = ("sm_86", "sm_89", "sm_120")
KINDS = {
    *("decode", "verify", "combine", "prefill", "store", "codes", "add", "numbers", "int8", "fp8"),
    *("fixed", "grouped", "router", "heads", "encode", "norm", "gate", "row", "states"),
}
WITHOUT_FP8 = ("sm_80", "sm_86", "gfx942")
"""They have no products of e4m3: formats whose inputs become FP8, too, are refused there."""
MULTIPLYING = {"prefill", "codes", "int8", "fp8", "scaled", "fixed", "grouped", "heads"}
TENSOR = {"sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma", "gfx950": "mfma"}
BY_ROWS = {
    **{kind: {"queries", "keys", "values"} for kind in ("decode", "verify", "prefill")},
    **{kind: {"inputs", "weights"} for kind in MULTIPLYING - {"prefill", "codes"} | {"router"}},
    "store": {"queries", "keys", "values"},
    "combine": {"partial_sums"},
    "codes": {"inputs", "packed"},
    "numbers": {"packed"},
    "add": {"sums"},
    "encode": {"inputs"},
    "norm": {"states", "updates", "weight"},
    "gate": {"merged"},
    "row": {"inputs", "weights"},
    "states": {"mixed", "matrices"},
}
"""Of each kind the tensors whose rows are read; the rest are a number here and there, as tables and scales."""


def rows_of(each: dict) -> set[str]:
    """Return which tensors a kernel reads by rows."""
    if each["kind"] == "grouped":
        return {"inputs", "packed" if "codes" in each["name"] else "weights"}
    if each["kind"] == "norm":
        absent = {"weight": "no weight" in each["name"], "updates": "added to" not in each["name"]}
        return {name for name in BY_ROWS["norm"] if not absent.get(name)}
    # Of latents the values are in the keys, and queries come turned.
    absent = {"values", *({"queries"} if each["kind"] == "store" else ())}
    return BY_ROWS[each["kind"]] - (absent if each["head_dim"] == 576 else set())


def is_float32(each: dict) -> bool:
    """Whether attention has queries of float32, which no tensor core of NVIDIA's multiplies exactly."""
    return each["number_bytes"].get("queries") == 4 and each["kind"] != "store"


def least_read(each: dict, tensor: str, *, is_nvidia: bool) -> int:
    """Return the bytes that a thread is to read at once of a tensor: 16, where there are so many for it."""
    if each["kind"] in ("combine", "add"):
        return 4  # a program has one row or little more
    if tensor == "inputs" and "group 32" in each["name"]:
        return 4  # 16 rows of the 16 inputs that are in the lower halves of a group's bytes, for 128 threads
    if is_float32(each):  # small tiles, in 256 threads or in twice as many of AMD's
        return (4 if is_nvidia else 2) * (1 if each["number_bytes"][tensor] == 1 else 4)
    if each["number_bytes"][tensor] == 1:
        # Numbers of a byte become 16-bit ones, of which a thread has 16 bytes for a tensor core; AMD's kernels for
        # gfx950 take fewer at a time, and codes that only become numbers one by one.
        amd = 1 if each["kind"] == "numbers" else 4
        return 8 if is_nvidia else amd
    return 16 if is_nvidia else 8  # AMD's waves have 64 threads


TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950")

FEW_TARGETS = ("sm_90", "sm_120", "gfx942")
"""Of the slow tests: much shared memory and `wgmma`, little of it, and the other maker.

With the other release of Triton, `make test-triton` compiles for all, and `make test-triton-all` with both.
"""


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
@pytest.mark.parametrize("target", TARGETS if os.environ.get("OTHER_TRITON") else FEW_TARGETS)
def test_each_kernel_compiles_within_bounds(target, tmp_path):
    """With every setting, for every size of heads; every combination is the next test's."""
    kernels = compile_for(target, tmp_path, "--few")
    of_float32 = [each for each in kernels if is_float32(each)]
    assert {each["head_dim"] for each in of_float32} == {64, 128, 256}
    assert {each["name"].partition(" ")[0] for each in of_float32} == {"prefill", "decode"}
    assert {each["name"].endswith(", fixed") for each in of_float32} == {True, False}
    check(target, kernels)


@pytest.mark.every_launch
@pytest.mark.parametrize("target", TARGETS)
def test_all_launches_compile_within_bounds(target, tmp_path):
    check(target, compile_for(target, tmp_path))


def check(target: str, kernels: list[dict]) -> None:
    of_fp8 = set() if target in WITHOUT_FP8 else {"scaled"}
    assert {each["kind"] for each in kernels} == KINDS | of_fp8
    assert {each["head_dim"] for each in kernels} == set(MOST_SPILLED)
    # What multiplies few rows gives a row the bits that what multiplies many does.
    assert len({each["tensor_instruction"] for each in kernels if each["kind"] == "fixed"}) == 1
    for each in kernels:
        where = f"{target}: {each}"
        is_nvidia = target.startswith("sm_")
        most = (MOST_SPILLED if is_nvidia else MOST_SPILLED_AMD)[each["head_dim"]]
        if is_float32(each):
            is_fixed = each["name"].endswith(", fixed")
            most = MOST_SPILLED_FLOAT32[each["head_dim"]] if is_nvidia and is_fixed else 0
        assert each["spilled_bytes"] <= most, where
        # Half a wave of AMD's reads the 16 bytes of an output.
        is_narrow = each["kind"] in ("combine", "add", *(() if is_nvidia else ("numbers",)))
        is_narrow = is_narrow or (is_float32(each) and not is_nvidia)
        assert each["wide_loads"] > 0 or is_narrow, where
        for tensor in rows_of(each):
            least = least_read(each, tensor, is_nvidia=is_nvidia)
            assert each["read_bytes"][tensor] >= least, f"{tensor} of {where}"
        if target in SMALL_SHARED:
            assert each["shared_bytes"] <= 99 * 1024, where
        if is_float32(each):
            assert each["tensor_instruction"] == ("" if is_nvidia else "mfma"), where
        elif each["kind"] in MULTIPLYING:
            assert each["tensor_instruction"] == TENSOR.get(target, "mma"), where
        elif each["kind"] in ("decode", "verify"):
            assert each["tensor_instruction"], where


def test_who_is_read_and_how_wide_is_told_from_what_the_compiler_got():
    """A line of each kind: NVIDIA's reads, with one on its way to shared memory, AMD's, LLVM's, and a table between."""
    text = """
define ptx_kernel void @some(ptr addrspace(1) %0, ptr addrspace(1) readonly %1, i32 %2, ptr addrspace(1) %3, ptr addrspace(1) %4) {
  %5 = tail call i32 asm sideeffect "mov.u32 $0, 0x0; ld.global.b32 { $0 }, [ $1 + 0 ];", "=r,l"(ptr addrspace(1) %1) #3
  %6 = mul i32 %5, %2
  %7 = getelementptr i8, ptr addrspace(1) %0, i32 %6
  %8 = tail call { i32, i32, i32, i32 } asm sideeffect "@$5 ld.global.v4.b32 { $0, $1, $2, $3 }, [ $4 + 0 ];", "=r,=r,=r,=r,l,b"(ptr addrspace(1) %7, i1 true)
  tail call void asm sideeffect "cp.async.ca.shared.global [ $0 + 0 ], [ $1 + 0 ], 0x8, $2;", "r,l,r"(ptr addrspace(3) %9, ptr addrspace(1) %7, i32 8)
  %10 = phi ptr addrspace(1) [ %3, %11 ], [ %12, %13 ]
  %12 = getelementptr i8, ptr addrspace(1) %10, i64 64
  %14 = load <4 x i32>, ptr addrspace(1) %12, align 16
  %15 = load <8 x half>, ptr addrspace(3) %9, align 16
  %16 = tail call ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1(ptr addrspace(1) %4, i16 0, i32 2147483646, i32 159744)
  %17 = tail call <2 x i32> @llvm.amdgcn.raw.ptr.buffer.load.v2i32(ptr addrspace(8) %16, i32 %6, i32 0, i32 0)
  store <4 x i32> %14, ptr addrspace(1) %0
}
"""
    found = load_widths(text, ["keys", "table", "stride", "inputs", "scales"])
    assert found == {"inputs": (16,), "keys": (8, 16), "scales": (8,), "table": (4,)}


def test_loops_are_what_a_jump_back_repeats():
    """A jump forward is none, nor is the one to itself behind the end; of two loops in each other the outer one counts."""
    text = """
.text.some:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @P0  BRA `(.L_x_9) ;
.L_x_1:
        /*0020*/                   IADD3 R2, R2, 0x1, RZ ;
.L_x_2:
        /*0030*/                   FFMA R3, R3, R4, R5 ;
        /*0040*/              @!P1 BRA `(.L_x_2) ;
        /*0050*/               @P2 BRA `(.L_x_1) ;
.L_x_9:
        /*0060*/                   EXIT ;
.L_x_3:
        /*0070*/                   BRA `(.L_x_3);
"""
    assert looped_instructions(text) == 4


@pytest.mark.parametrize(
    ("registers", "num_warps", "held"),
    [
        # Of 64 warps or 48: what programs of two warps fill, where there may be 32, 16 or 24 of them.
        (32, 2, {80: 64, 86: 32, 89: 48, 90: 64, 100: 64, 120: 48}),
        (32, 1, {80: 32, 86: 16, 89: 24, 90: 32, 100: 32, 120: 24}),
        (32, 4, {80: 64, 86: 48, 89: 48, 90: 64, 100: 64, 120: 48}),
        (255, 8, dict.fromkeys((80, 86, 89, 90, 100, 120), 8)),
    ],
)
def test_a_processor_holds_as_many_programs_as_its_capability_says(registers, num_warps, held):
    compiled = Compiled(registers, 0, 0, num_warps, 0, "", 0, None, {}, {})
    nvidia = [target for target in targets().values() if target.is_nvidia]
    assert {each.capability: compiled.warps_per_processor(each) for each in nvidia} == held


def test_the_page_says_that_nothing_was_measured_where_there_are_no_measurements():
    page = ROOT / "docs/benchmarks/gpu.md"
    text, has_measurements = page.read_text(), page.with_suffix(".json").exists()
    assert ("**Reckoned: nothing on this page was measured.**" in text) == (not has_measurements)
    assert all(f"## {card}" in text for card in ("H200", "H100", "L40S", "A5000"))

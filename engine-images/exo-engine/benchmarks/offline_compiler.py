"""Compiles launches of Triton kernels for GPUs that are not there, and reads what the compiler made of them.

It needs no GPU: Triton brings the assembler and the tools that read its output. What is compiled is what would
be launched (`exo_engine.kernels.triton.launch`), with the same specialisation of its arguments.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from exo_engine.kernels.triton.launch import Launch, Target
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float8_e4m3fn: "*fp8e4nv",
}
_ALIGNED = [["tt.divisibility", 16]]
# Of one processor: 32-bit registers, threads, and the registers that a warp is given at a time.
_REGISTERS, _THREADS, _GRANULE = 65536, {80: 2048, 90: 2048, 100: 2048}, 256


@dataclass(frozen=True, slots=True)
class Compiled:
    """One launch for one GPU."""

    registers: int
    """Per thread."""
    spilled_bytes: int
    """Per thread, in memory instead of in registers."""
    shared_bytes: int
    num_warps: int
    wide_loads: int
    """Instructions that load 16 bytes per thread."""
    tensor_instruction: str
    """What multiplies matrices: mma, wgmma, tcgen05, mfma; empty: nothing does."""
    instructions: int

    def warps_per_processor(self, target: Target) -> int:
        """Return how many warps of this launch a processor holds at once."""
        threads = _THREADS.get(target.capability, 1536)
        per_warp = -(-self.registers * 32 // _GRANULE) * _GRANULE
        by_registers = _REGISTERS // max(per_warp, 1) // self.num_warps
        # The driver takes 1 KiB of each program's shared memory, and leaves 1 KiB alone.
        by_shared = (target.shared_bytes + 1024) // (self.shared_bytes + 1024)
        programs = min(by_registers, by_shared, threads // 32 // self.num_warps, 32)
        return programs * self.num_warps


def compile_launch(launch: Launch, target: Target) -> Compiled:
    """Compile one launch, whose tensors may be on the device `meta`."""
    signature, constants, attributes = _specialise(launch)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    gpu = GPUTarget("cuda", target.capability, 32)
    if not target.is_nvidia:
        gpu = GPUTarget("hip", f"gfx{target.capability}", 64)
    built = triton.compile(source, target=gpu, options=dict(launch.options))
    if target.is_nvidia:
        return _read_cubin(built, launch)
    return _read_amd(built, launch)


def compiled_key(launch: Launch) -> object:
    """Return what a launch is compiled by: two with the same key are one binary."""
    signature, constants, attributes = _specialise(launch)
    seen = (signature.items(), constants.items(), attributes, launch.options.items())
    return (launch.kernel, *map(tuple, seen))


def _specialise(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[Any, Any]]:
    """Return the types of arguments, the values of those that are constants, and who is aligned."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[Any, Any] = {}
    for place, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        is_special = not parameter.do_not_specialize
        if parameter.is_constexpr or (is_special and isinstance(value, int) and value == 1):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = _TYPES[value.dtype]
            is_anywhere = parameter.do_not_specialize_on_alignment
            if not is_anywhere and (value.is_meta or value.data_ptr() % 16 == 0):
                attributes[(place,)] = _ALIGNED
        elif isinstance(value, int):
            signature[parameter.name] = "i32" if abs(value) < 2**31 else "i64"
            if value % 16 == 0 and is_special:
                attributes[(place,)] = _ALIGNED
        else:
            signature[parameter.name] = "fp32"
    return signature, constants, attributes


def _read_cubin(built: Any, launch: Launch) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = _run(_TOOLS / "cuobjdump", "-res-usage", file.name)
        sass = _run(_TOOLS / "nvdisasm", "-c", file.name)
    found = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    ptx = built.asm["ptx"]
    kinds = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")
    kind = next((kind for kind in kinds if kind in ptx), "")
    return Compiled(
        registers=found["REG"],
        spilled_bytes=found["STACK"] + found["LOCAL"],
        shared_bytes=built.metadata.shared,
        num_warps=built.metadata.num_warps,
        wide_loads=len(re.findall(r"\b(?:LDG|LDGSTS)\.E[.\w]*\.128", sass)),
        tensor_instruction=kind.partition(".")[0],
        instructions=len(re.findall(r"/\*[0-9a-f]{4,}\*/", sass)),
    )


def _read_amd(built: Any, launch: Launch) -> Compiled:
    text = built.asm["amdgcn"]

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        return int(found[1]) if found else 0

    return Compiled(
        registers=number("vgpr_count"),
        spilled_bytes=4 * number("vgpr_spill_count"),
        shared_bytes=built.metadata.shared,
        num_warps=launch.num_warps,
        wide_loads=len(re.findall(r"(?:global|buffer)_load_dwordx4", text)),
        tensor_instruction="mfma" if "v_mfma" in text else "",
        instructions=len(re.findall(r"^\t[sv]_|^\t(?:global|ds|buffer)_", text, re.MULTILINE)),
    )


def _run(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def targets() -> Mapping[str, Target]:
    """Return the GPUs that kernels are compiled for."""
    processors = {80: 108, 86: 64, 89: 142, 90: 132, 100: 148, 120: 188}
    found = {f"sm_{number}": Target(True, number, count) for number, count in processors.items()}
    return {**found, "gfx942": Target(False, 942, 304), "gfx950": Target(False, 950, 256)}

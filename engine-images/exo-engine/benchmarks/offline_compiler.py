"""Compiles launches of Triton kernels for GPUs that are not there, and reads what the compiler made of them.

It needs no GPU: Triton brings the assembler and a tool that reads its output. What is compiled is what would
be launched (`exo_engine.kernels.triton.launch`), with the same specialisation of its arguments. Widths are read from
PTX, and instructions counted by their bytes; only who asks for loops has a kernel disassembled.
"""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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
# What reads memory in LLVM IR: instructions of NVIDIA's, with the widths of one, a call of AMD's, or LLVM's own.
_NAME = re.compile(r"%[\w.]+")
_ADDRESS = re.compile(r"ptr addrspace\([178]\) (%[\w.]+)")
_NVIDIA = re.compile(r"ld\.global[\w.:]*?(?:\.v(\d))?\.b(\d+) ")
_ASYNC = re.compile(r"cp\.async\.c[ag][^;]*?0x([0-9a-f]+)")
_AMD = re.compile(r"@llvm\.amdgcn\.raw\.ptr\.buffer\.load\.(?:v(\d+))?[if](\d+)\(")
_PLAIN = re.compile(r"\bload (?:<(\d+) x )?(?:i|b?float|half|double)(\d*)")
# Of one processor: 32-bit registers, and those that a warp is given at a time.
_REGISTERS, _GRANULE = 65536, 256
# What a processor holds at most, by compute capability: threads and programs (CUDA C++ Programming Guide, technical
# specifications per compute capability: "resident threads" and "resident blocks per SM").
_HELD = {80: (2048, 32), 86: (1536, 16), 89: (1536, 24), 90: (2048, 32), 100: (2048, 32), 120: (1536, 24)}  # fmt: skip
_INSTRUCTION_BYTES = 16  # since compute capability 7.0
_EXECUTED = 0x4  # SHF_EXECINSTR of a section
# Of what is disassembled.
_LABEL = re.compile(r"(\.L\w+):")
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/")
_JUMP = re.compile(r"\bBRA\b.*`\((\.L\w+)\)")
# Vectors of 16 bytes, and copies of as many from memory to shared memory.
_WIDE_LOAD = re.compile(
    r"ld\.global[.\w:]*\.v(?:4\.b32|2\.b64)|cp\.async\.cg\.shared\.global [^;]*?, 0x10"
)


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
    looped: int | None
    """Of them those in a loop; None: nobody looked."""
    read_bytes: Mapping[str, int]
    """Of each tensor that is read, the most bytes that a thread reads of it at once."""
    number_bytes: Mapping[str, int]
    """Of the same tensors, what one number takes."""

    def warps_per_processor(self, target: Target) -> int:
        """Return how many warps of this launch a processor of NVIDIA's holds at once."""
        threads, held = _HELD[target.capability]
        per_warp = -(-self.registers * 32 // _GRANULE) * _GRANULE
        by_registers = _REGISTERS // max(per_warp, 1) // self.num_warps
        # The driver takes 1 KiB of each program's shared memory, and leaves 1 KiB alone.
        by_shared = (target.shared_bytes + 1024) // (self.shared_bytes + 1024)
        programs = min(by_registers, by_shared, threads // 32 // self.num_warps, held)
        return programs * self.num_warps


def compile_launch(launch: Launch, target: Target, *, has_loops: bool = False) -> Compiled:
    """Compile one launch, whose tensors may be on the device `meta`.

    Args:
        launch: what would be launched.
        target: the GPU.
        has_loops: look for loops, on one of NVIDIA's.
    """
    signature, constants, attributes = _specialise(launch)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    gpu = GPUTarget("cuda", target.capability, 32)
    if not target.is_nvidia:
        gpu = GPUTarget("hip", f"gfx{target.capability}", 64)
    built = triton.compile(source, target=gpu, options=dict(launch.options))
    names = [name for name, kind in signature.items() if kind != "constexpr"]
    widest = {name: max(widths) for name, widths in load_widths(built.asm["llir"], names).items()}
    reads = {
        "read_bytes": widest,
        "number_bytes": {name: launch.arguments[name].element_size() for name in widest},
    }
    if target.is_nvidia:
        return _read_cubin(built, reads, has_loops=has_loops)
    return _read_amd(built, launch, reads)


def compiled_key(launch: Launch) -> object:
    """Return what a launch is compiled by: two with the same key are one binary."""
    signature, constants, attributes = _specialise(launch)
    seen = (signature.items(), constants.items(), attributes, launch.options.items())
    return (launch.kernel, *map(tuple, seen))


def settings(launch: Launch) -> set[object]:
    """Return which ways a launch takes through its kernel: values of constants, types of arguments, fused or not.

    Of a constant that is a number it is 0, 1 or more: others size tiles.
    """
    signature, constants, _ = _specialise(launch)
    kinds = {name: min(each, 2) if type(each) is int else each for name, each in constants.items()}
    values = (*kinds.items(), *signature.items(), ("fuses", launch.fuses))
    return {(launch.kernel, name, value) for name, value in values}


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


def _tool(name: str, *arguments: str) -> str:
    """Return what one of the tools that Triton brings prints."""
    result = subprocess.run([_TOOLS / name, *arguments], capture_output=True, text=True, check=True)
    return result.stdout


def _read_cubin(built: Any, reads: Mapping[str, Any], *, has_loops: bool) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "-res-usage", file.name)
        looped = looped_instructions(_tool("nvdisasm", "-c", file.name)) if has_loops else None
    found = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    ptx = built.asm["ptx"]
    kinds = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")
    kind = next((kind for kind in kinds if kind in ptx), "")
    return Compiled(
        registers=found["REG"],
        spilled_bytes=found["STACK"] + found["LOCAL"],
        shared_bytes=built.metadata.shared,
        num_warps=built.metadata.num_warps,
        wide_loads=len(_WIDE_LOAD.findall(ptx)),
        tensor_instruction=kind.partition(".")[0],
        instructions=_code_bytes(built.asm["cubin"]) // _INSTRUCTION_BYTES,
        looped=looped,
        **reads,
    )


def looped_instructions(text: str) -> int:
    """Return how many instructions are in a loop: between a label and the last jump back to it.

    Of a loop within another the whole outer one counts. A jump to itself, with which code ends, is no loop.

    Args:
        text: what `nvdisasm` makes of a kernel.
    """
    labels: dict[str, int] = {}
    looped: set[int] = set()
    count = 0
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = count
        elif _INSTRUCTION.match(line):
            jump = _JUMP.search(line)
            if jump and labels.get(jump[1], count) < count:
                looped.update(range(labels[jump[1]], count + 1))
            count += 1
    return len(looped)


def _code_bytes(cubin: bytes) -> int:
    """Return the bytes of a 64-bit ELF file's sections that are executed."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count = struct.unpack_from("<HH", cubin, 0x3A)
    headers = (struct.unpack_from("<IIQQQQ", cubin, table + size * i) for i in range(count))
    return sum(num_bytes for _, _, flags, _, _, num_bytes in headers if flags & _EXECUTED)


def _read_amd(built: Any, launch: Launch, reads: Mapping[str, Any]) -> Compiled:
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
        looped=None,
        **reads,
    )


def load_widths(text: str, names: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """Return the widths of reads, each once and in bytes, by the argument that they read.

    Every address there is made of one argument, and every read is one instruction.

    Args:
        text: LLVM IR of a kernel.
        names: of the arguments that the compiler sees, in order.
    """
    header = next(line for line in text.splitlines() if line.startswith("define "))
    arguments = {f"%{index}": name for index, name in enumerate(names)}
    pointers = set(re.findall(r"ptr addrspace\(1\)[^,%]*(%\d+)", header))
    sources: dict[str, list[str]] = {}
    reads: list[tuple[str, int]] = []
    for line in text[text.index(header) + len(header) :].splitlines():
        target, _, rest = line.strip().partition(" = ")
        widths = list(_widths(line))
        address = _ADDRESS.search(line)
        if widths and address:
            reads += [(address[1], width) for width in widths]
        elif rest and not widths and " load " not in line:  # what is read is no address of its own
            sources.setdefault(target, []).extend(_NAME.findall(rest))
    found: dict[str, set[int]] = {}
    for register, width in reads:
        for root in _roots(register, sources, pointers):
            found.setdefault(arguments.get(root, root), set()).add(width)
    return {name: tuple(sorted(each)) for name, each in sorted(found.items())}


def _widths(line: str) -> Iterator[int]:
    """Yield the bytes of each read from memory in a line."""
    for pattern in (_NVIDIA, _AMD):
        for count, bits in pattern.findall(line):
            yield int(count or 1) * int(bits) // 8
    for size in _ASYNC.findall(line):
        yield int(size, 16)
    plain = _PLAIN.search(line)
    if plain and "ptr addrspace(1)" in line and " load " in line:
        sizes = {"half": 16, "bfloat": 16, "float": 32, "double": 64}
        kind = re.search(r"\bload (?:<\d+ x )?([a-z]+)", line)
        bits = int(plain[2]) if plain[2] else sizes[kind[1]] if kind else 0
        yield int(plain[1] or 1) * bits // 8


def _roots(register: str, sources: Mapping[str, list[str]], pointers: set[str]) -> set[str]:
    """Return the arguments that an address is made of."""
    seen, waiting = set(), [register]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += sources.get(name, [])
    return seen & pointers


def targets() -> Mapping[str, Target]:
    """Return the GPUs that kernels are compiled for."""
    processors = {80: 108, 86: 64, 89: 142, 90: 132, 100: 148, 120: 188}
    found = {f"sm_{number}": Target(True, number, count) for number, count in processors.items()}
    return {**found, "gfx942": Target(False, 942, 304), "gfx950": Target(False, 950, 256)}

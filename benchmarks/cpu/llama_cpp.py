"""llama.cpp, built from the sources that `llama-cpp-python` brings; its programs, and what they print.

    python -m benchmarks.cpu.llama_cpp                       # builds; kept in the cache directory, made once
    python -m benchmarks.cpu.llama_cpp --instructions avx2   # another build, for a processor without more

Needs cmake, ninja, a C++ compiler, and the network for the sources: 15 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from benchmarks.cpu import instructions

VERSION = "0.3.36"
_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-server")
_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
}
_WITHOUT_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
"""With AMX, models in Q8_0 and Q4_0 end in a segmentation fault (ggml-org/llama.cpp, issue 20824). Products of
bf16 do not use it."""
_NEEDED = ("cmake", "ninja", "c++")


def cache_dir() -> Path:
    """Return where builds and models are kept."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "exo-bench"


def _home() -> Path:
    return cache_dir() / f"llama-cpp-{VERSION}"


def program(name: str) -> Path:
    """Return the path of a program, there or not."""
    return _build() / "bin" / name


def _build() -> Path:
    held = instructions.held()
    return _home() / (f"build-{held}" if held else "build")


def gguf_package() -> Path:
    """Return the folder from which `gguf` is imported."""
    return _home() / "source" / "vendor" / "llama.cpp" / "gguf-py"


def missing() -> str | None:
    """Return why llama.cpp cannot run here; None: it can."""
    if all(program(name).exists() for name in _PROGRAMS):
        return None
    if absent := [name for name in _NEEDED if shutil.which(name) is None]:
        return f"not built, and {', '.join(absent)} is not on this machine"
    more = f" --instructions {held}" if (held := instructions.held()) else ""
    return f"not built: run `python -m benchmarks.cpu.llama_cpp{more}`"


def build(jobs: int) -> None:
    """Get the sources and compile them.

    Raises:
        subprocess.CalledProcessError: a step failed.
    """
    home = _home()
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "source").exists():
        _unpack_sources(home)
    cmake = ["cmake", "-S", str(gguf_package().parent), "-B", str(_build()), "-G", "Ninja"]
    options = {**_OPTIONS, **_without_amx(Path("/proc/cpuinfo").read_text(encoding="utf-8"))}
    options |= instructions.LLAMA_CPP.get(instructions.held() or "", {})
    subprocess.run([*cmake, *(f"-D{key}={value}" for key, value in options.items())], check=True)
    make = ["cmake", "--build", str(_build()), "-j", str(jobs), "--target", *_PROGRAMS]
    subprocess.run(make, check=True)


def _without_amx(cpuinfo: str) -> dict[str, str]:
    """Return the options that leave out what fails; a compiler for a processor that lacks it may not know its name."""
    has_amx = " amx_tile" in cpuinfo
    return dict.fromkeys(("CMAKE_C_FLAGS", "CMAKE_CXX_FLAGS"), _WITHOUT_AMX) if has_amx else {}


def _unpack_sources(home: Path) -> None:
    wanted = home / "wanted.txt"
    wanted.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{_SHA256}\n", encoding="ascii")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
    pip += ["--require-hashes", "--dest", str(home), "--requirement", str(wanted)]
    subprocess.run(pip, check=True)
    unpacked = home / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(home / f"llama_cpp_python-{VERSION}.tar.gz") as archive:
        archive.extractall(unpacked, filter="data")
    (unpacked / f"llama_cpp_python-{VERSION}").rename(home / "source")


def quantized(bf16: Path, form: str) -> Path:
    """Return the file of a model in `bf16`, `q8_0` or `q4_0`; made from that in bf16 where it is not there."""
    target = bf16.with_name(f"{form}.gguf")
    if not target.exists():
        partial = target.with_suffix(".partial")
        command = [str(program("llama-quantize")), str(bf16), str(partial), form.upper()]
        subprocess.run(command, check=True, capture_output=True)
        partial.rename(target)
    return target


def prompt_command(model: Path, tokens: int, threads: int) -> list[str]:
    """Return what times a prompt."""
    words = [str(program("llama-bench")), "-m", str(model), "-p", str(tokens), "-n", "0"]
    return [*words, "-r", "2", "-t", str(threads), "-o", "json"]


def decode_command(model: Path, batch: int, prompt: int, output: int, threads: int) -> list[str]:
    """Return what times the decoding of a batch."""
    words = [str(program("llama-batched-bench")), "-m", str(model), "-npl", str(batch)]
    words += ["-npp", str(prompt), "-ntg", str(output), "-c", str(batch * _whole(prompt + output))]
    words += ["-b", "2048", "-ub", "512", "-t", str(threads), "-tb", str(threads)]
    return [*words, "--output-format", "jsonl"]


def _whole(tokens: int) -> int:
    """Return the tokens of a sequence's cache: llama.cpp gives it whole pieces of 256, and rounds down."""
    return -(-tokens // 256) * 256


def server_command(model: Path, port: int, threads: int, num_seqs: int, tokens: int) -> list[str]:
    """Return what serves `num_seqs` sequences at a time that share a cache of so many tokens."""
    words = [str(program("llama-server")), "-m", str(model), "--port", str(port)]
    words += ["-t", str(threads), "-tb", str(threads), "-np", str(num_seqs), "-c", str(tokens)]
    return [*words, "--kv-unified", "--no-webui", "--offline", "--log-disable"]


def prompt_speed(text: str) -> float:
    """Return tokens per second from what `llama-bench` printed."""
    (row,) = json.loads(text)
    return float(row["avg_ts"])


def decode_speed(text: str) -> float:
    """Return tokens per second of the decoding alone from what `llama-batched-bench` printed."""
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if len(rows) != 1:
        raise ValueError(f"llama-batched-bench printed {len(rows)} rows instead of one")
    return float(rows[0]["speed_tg"])


def main() -> str | None:
    """Build, unless it is there; return what is missing then."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu.llama_cpp", allow_abbrev=False)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--instructions", choices=instructions.LLAMA_CPP)
    options = parser.parse_args()
    instructions.hold(options.instructions)
    if missing() is not None:
        build(options.jobs)
    return missing()


if __name__ == "__main__":
    sys.exit(main())

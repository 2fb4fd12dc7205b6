"""Compiles the CPU kernels into the package where a C++ compiler is found; else the wheel has none.

Each set of instructions is a compilation of `kernels.cpp` of its own; which one runs is chosen when the
library is loaded. One that the compiler does not know is left out. Nothing but the C++ standard library
is needed.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_AVX512_VNNI = (*_AVX512, "-mavx512vnni")
_AVX512_BF16 = (*_AVX512_VNNI, "-mavx512bf16")
_PATHS = {
    "x86_64": {
        "avx2": _AVX2,
        "avx2_vnni": (*_AVX2, "-mavxvnni"),
        "avx512": _AVX512,
        "avx512_vnni": _AVX512_VNNI,
        "avx512_bf16": _AVX512_BF16,
        "amx": (*_AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    },
}
_FLAGS = (
    *("-O3", "-std=c++20", "-fPIC", "-fvisibility=hidden"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-Wno-psabi"),
)
# The machine that builds is not the one that runs: no library of the compiler's is needed there.
_LINK = ("-shared", "-pthread", "-static-libstdc++", "-static-libgcc")


class KernelsHook(BuildHookInterface):
    """Adds `libexo_kernels.so` to the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See `BuildHookInterface.initialize`."""
        package = Path(self.root, "src/exo_engine/kernels")
        target = package / "libexo_kernels.so"
        target.unlink(missing_ok=True)
        compiler = _find_compiler()
        if compiler is None:
            self.app.display_warning("no C++ compiler: the engine will compute with PyTorch alone")
            return
        try:
            _compile(compiler, package / "csrc", target)
        except (subprocess.CalledProcessError, OSError) as exc:
            said = exc.stderr if isinstance(exc, subprocess.CalledProcessError) else exc
            self.app.display_warning(
                f"{shlex.join(compiler)} cannot compile the CPU kernels, so the engine will compute with "
                f"PyTorch alone:\n{said}"
            )
            return
        build_data["artifacts"].append(f"/{target.relative_to(self.root)}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _find_compiler() -> list[str] | None:
    """Return the words of the command: CXX may have more than a program, as `ccache g++` has."""
    if named := os.environ.get("CXX", "").strip():
        try:
            return shlex.split(named)
        except ValueError:  # a quote without its end: no such program, as the build then says
            return [named]
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return None if found is None else [found]


def _compile(compiler: Sequence[str], sources: Path, target: Path) -> None:
    paths: dict[str, Iterable[str]] = {"plain": (), **_PATHS.get(platform.machine(), {})}
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = {path: Path(directory, f"{path}.o") for path in (*paths, "threads", "library")}

        def compile_path(path: str) -> bool:
            flags = (*paths[path], f"-DEXO_PATH={path}")
            source, is_needed = sources / "kernels.cpp", path == "plain"
            return _run(*compiler, *flags, "-c", source, "-o", objects[path], is_needed=is_needed)

        has_path = dict(zip(paths, threads.map(compile_path, paths), strict=True))
        known = [path for path, is_known in has_path.items() if is_known]
        macros = [f"-DEXO_HAS_{path.upper()}" for path in known]
        for name in ("threads", "library"):
            source = sources / f"{name}.cpp"
            _run(*compiler, *macros, "-c", source, "-o", objects[name], is_needed=True)
        parts = [objects[name] for name in (*known, "threads", "library")]
        _run(*compiler, *_LINK, *parts, "-o", target, is_needed=True)


def _run(*command: str | Path, is_needed: bool = False) -> bool:
    words = [*map(str, command), *_FLAGS]
    done = subprocess.run(words, capture_output=True, text=True, check=is_needed)
    return done.returncode == 0

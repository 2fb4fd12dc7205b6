"""Which kernels are chosen, and what happens without them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from exo_engine.errors import ConfigurationError
from exo_engine.kernels import LIBRARY, VARIABLE, library


@pytest.mark.parametrize("word", ["", "auto"])
def test_the_best_path_of_the_processor_is_taken(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv(VARIABLE, word)
    paths = library.available_paths()
    if not paths:
        pytest.skip("the package was built without a compiler")
    chosen = library.chosen_kernels()
    assert chosen is not None
    assert chosen.path == paths[0]
    assert [path for path in library.PATHS if path in paths] == list(paths)


def test_a_path_can_be_forced_and_all_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in library.available_paths():
        monkeypatch.setenv(VARIABLE, path)
        chosen = library.chosen_kernels()
        assert chosen is not None
        assert chosen.path == path
        allowed = library.allowed_paths()
        assert allowed[0] == path
        assert library.available_paths()[-len(allowed) :] == allowed, "all that are worse, too"
    monkeypatch.setenv(VARIABLE, "off")
    assert library.chosen_kernels() is None
    assert library.allowed_paths() == ()


def test_a_path_that_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "avx9000")
    with pytest.raises(ConfigurationError, match="EXO_ENGINE_CPU_KERNELS is 'avx9000'"):
        library.chosen_kernels()


@pytest.mark.parametrize("named", ["auto", "off", "avx9000"])
def test_who_asks_for_the_path_gets_it_without_waiting_for_pytorch(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv(VARIABLE, named)
    code = (
        "import sys; from exo_engine.kernels.library import main; code = main();"
        " assert 'torch' not in sys.modules; sys.exit(code)"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if named == "avx9000":
        assert asked.returncode == 78
        assert asked.stderr.startswith("EXO_ENGINE_CPU_KERNELS is 'avx9000', but this machine has")
        assert asked.stderr.count("\n") == 1
        return
    kernels = library.chosen_kernels()
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.strip() == ("" if kernels is None else kernels.path)


@pytest.mark.parametrize("is_damaged", [False, True], ids=["missing", "damaged"])
def test_without_the_library_pytorch_computes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_damaged: bool
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "libexo_kernels.so")
    if is_damaged:
        (tmp_path / "libexo_kernels.so").write_bytes(b"\x7fELF of something else")
    library._load_library.cache_clear()
    try:
        assert library.chosen_kernels() is None
    finally:
        library._load_library.cache_clear()


def test_a_damaged_library_that_is_switched_off_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "libexo_kernels.so")
    (tmp_path / "libexo_kernels.so").write_bytes(b"\x7fELF of something else")
    library._load_library.cache_clear()
    try:
        monkeypatch.setenv(VARIABLE, "off")
        assert library.chosen_kernels() is None
        assert caplog.text == ""
        monkeypatch.delenv(VARIABLE)
        assert library.chosen_kernels() is None
        assert "cannot load the CPU kernels" in caplog.text
    finally:
        library._load_library.cache_clear()


def test_kernels_of_other_sources_are_not_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not library.available_paths():
        pytest.skip("the package was built without a compiler")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(library, "_INTERFACE", -1)
    library._load_library.cache_clear()
    try:
        assert library.chosen_kernels() is None
        assert "compiled from other sources" in caplog.text
    finally:
        library._load_library.cache_clear()


@pytest.mark.skipif("CI" not in os.environ, reason="only there the package was surely built anew")
def test_a_machine_with_a_compiler_has_the_library() -> None:
    assert (shutil.which("c++") is None) == (library.available_paths() == ())


# Linux refuses tiles to a process with a stack for signals that is smaller than a frame with tiles.
_WITH_A_SMALL_STACK = """
import ctypes, sys

class Stack(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

room = ctypes.create_string_buffer(4096)
stack = Stack(ctypes.addressof(room), 0, len(room))
if ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None):
    sys.exit("skip")  # too small for this system altogether
library = ctypes.CDLL(sys.argv[1])
library.exo_path.restype = library.exo_refused.restype = ctypes.c_char_p
print(library.exo_refused().decode(), library.exo_path(0).decode())
"""


def test_a_process_that_is_refused_tiles_takes_the_next_path() -> None:
    if "amx" not in library.available_paths():
        pytest.skip("this machine or build has no AMX")
    command = [sys.executable, "-S", "-c", _WITH_A_SMALL_STACK, str(LIBRARY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stderr.strip() == "skip":
        pytest.skip("this system takes no stack that is too small for tiles")
    assert done.stdout.split() == ["amx", library.available_paths()[1]]

"""Built without a compiler, exo-engine is a wheel of Python alone, which installs and gives the answers of the kernels.

What is in a wheel is decided by `hatch_build.py` of the engine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from scripts.free_ports import free_port
from tests.skipping import skip_check

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "engine-images" / "exo-engine"
CHAT = ROOT / "exo_inference" / "hub" / "builtin_models" / "tiny-chat"
QUESTIONS = ("Who are you?", "What is a GPU?", "Tell me a joke.", "How do I stop a deployment?")
WARNINGS = {
    "none": "no C++ compiler: the engine will compute with PyTorch alone",
    "broken": "cannot compile the CPU kernels, so the engine will compute with PyTorch alone",
    "ill-formed": "cannot compile the CPU kernels, so the engine will compute with PyTorch alone",
    "missing": "no-such-cache g++ cannot compile the CPU kernels, so the engine will compute with PyTorch alone",
}
"""By what the machine that builds has for a compiler: what the build says."""


def build(tmp_path: Path, compiler: str) -> Path:
    """Return the wheel that is built of the engine's sources where only that compiler is found."""
    programs, sources = tmp_path / "bin", tmp_path / "sources"
    programs.mkdir()
    if compiler == "broken":
        (programs / "c++").symlink_to(shutil.which("false") or "/bin/false")
    named = {"missing": "no-such-cache g++", "ill-formed": 'g++ "'}
    variables = {"CXX": named[compiler]} if compiler in named else {}
    # Building there leaves the kernels of this installation where they are.
    without = shutil.ignore_patterns("tests", "benchmarks", "__pycache__", "*.so")
    shutil.copytree(ENGINE, sources, ignore=without)
    words = ["wheel", "--verbose", "--no-deps", "--no-build-isolation"]
    words += ["--wheel-dir", "wheels", "."]
    environment = {key: value for key, value in os.environ.items() if key not in ("CC", "CXX")}
    built = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *words],
        cwd=sources,
        env={**environment, **variables, "PATH": str(programs)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    assert WARNINGS[compiler] in " ".join(built.stdout.split())
    (wheel,) = (sources / "wheels").iterdir()
    return wheel


def install(wheel: Path, place: Path) -> dict[str, str]:
    """Install a wheel beside this environment; return the variables with which Python finds it first."""
    words = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(place), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *words], check=True)
    variables = {**os.environ, "PYTHONPATH": str(place)}
    variables.pop("EXO_ENGINE_CPU_KERNELS", None)
    return variables


def installed(variables: Mapping[str, str]) -> tuple[Path, list[str]]:
    """Return where Python finds the engine, and the CPU kernels that it has."""
    code = "from exo_engine.kernels import library; print(library.__file__, *library.available_paths())"
    told = subprocess.run(
        [sys.executable, "-c", code], env=variables, check=True, capture_output=True, text=True
    )
    file, *paths = told.stdout.split()
    return Path(file), paths


@contextmanager
def serving(command: list[str], variables: Mapping[str, str], log: Path) -> Iterator[httpx.Client]:
    """A client of the engine that a command starts, once it is ready."""
    port = free_port()
    words = ["serve", str(CHAT), "--served-model-name", "chat", "--port", str(port)]
    words += ["--dtype", "bfloat16", "--kv-cache-memory-bytes", "16M"]
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*command, *words], env=variables, stdout=written, stderr=written
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            limit = time.monotonic() + 120
            while not is_ready(client):
                assert time.monotonic() < limit, log.read_text()
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            yield client
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def answers(client: httpx.Client) -> list[str]:
    """What the model says to each of the questions where the likeliest token is taken.

    It was trained on them, so that the second likeliest is far behind: roundings of another path change no token.
    """
    return [
        client.post(
            "/v1/chat/completions",
            json={
                "model": "chat",
                "messages": [{"role": "user", "content": question}],
                "temperature": 0,
                "max_tokens": 60,
            },
        )
        .raise_for_status()
        .json()["choices"][0]["message"]["content"]
        for question in QUESTIONS
    ]


@pytest.mark.parametrize(
    "compiler",
    [
        pytest.param(compiler, marks=[pytest.mark.slow] if number else [])
        for number, compiler in enumerate(WARNINGS)
    ],
)
def test_without_a_compiler_that_compiles_the_wheel_is_for_every_machine(
    tmp_path: Path, compiler: str
) -> None:
    wheel = build(tmp_path, compiler)
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (about,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
        assert "Root-Is-Purelib: true" in archive.read(about).decode()
    assert "exo_engine/kernels/library.py" in names
    assert not [name for name in names if name.endswith(".so")]


@pytest.mark.slow
def test_it_installs_and_gives_the_answers_of_the_kernels(tmp_path: Path) -> None:
    own = {key: value for key, value in os.environ.items() if key != "EXO_ENGINE_CPU_KERNELS"}
    _, paths = installed(own)
    if not paths:
        skip_check(
            "the engine was built without a compiler, so there are no kernels to compare with"
        )
    place = tmp_path / "place"
    variables = install(build(tmp_path, "none"), place)
    file, none = installed(variables)
    assert file.is_relative_to(place)
    assert none == []
    with serving([str(place / "bin" / "exo-engine")], variables, tmp_path / "pure.log") as client:
        found = answers(client)
    assert all(len(each) > 10 for each in found)
    command = [sys.executable, "-m", "exo_engine.server.main"]
    for path in paths:
        chosen = {**own, "EXO_ENGINE_CPU_KERNELS": path}
        with serving(command, chosen, tmp_path / f"{path}.log") as client:
            assert answers(client) == found, path

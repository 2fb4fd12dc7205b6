"""The image for GPUs keeps the contract of the one for CPUs; read here, built in tests/kubernetes."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "engine-images" / "exo-engine"
CPU, CUDA = ((FOLDER / name).read_text() for name in ("Dockerfile", "Dockerfile.cuda"))


def instructions(text: str, word: str) -> list[str]:
    """What follows a word at the beginning of a line, its continued lines included."""
    joined = text.replace("\\\n", " ")
    return [" ".join(each.split()) for each in re.findall(rf"^{word} (.*)$", joined, re.MULTILINE)]


def variables(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in instructions(text, "ENV")[-1].split())


@pytest.mark.parametrize(
    "word", ["ENTRYPOINT", "CMD", "USER", "WORKDIR", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "LABEL"]
)
def test_what_starts_and_how_is_that_of_the_cpu_image(word: str) -> None:
    assert instructions(CUDA, word) == instructions(CPU, word) != []


def test_files_lie_where_those_of_the_cpu_image_do() -> None:
    final = [text[text.rindex("FROM scratch") :] for text in (CPU, CUDA)]
    assert instructions(final[1], "COPY") == instructions(final[0], "COPY")


def test_variables_differ_in_the_device_and_what_a_gpu_needs() -> None:
    cpu, cuda = variables(CPU), variables(CUDA)
    assert cuda.pop("EXO_DEVICE") == "cuda"
    assert cpu.pop("EXO_DEVICE") == "cpu"
    added = {name: cuda.pop(name) for name in set(cuda) - set(cpu)}
    assert cuda == cpu
    assert added == {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "TRITON_CACHE_DIR": "/var/cache-exo/triton",
    }


def test_the_base_is_pinned_and_every_package_has_a_hash() -> None:
    (base,) = instructions(CUDA, "ARG")
    assert re.fullmatch(r"BASE=\S+:bookworm-\d{8}-slim", base)
    assert instructions(CPU, "ARG")[0] == base
    assert CUDA.count("pip --require-hashes -r requirements/") == 2
    assert "index-url" not in CUDA


def test_compiled_kernels_lie_in_a_volume_that_the_user_may_write() -> None:
    (volume,) = instructions(CUDA, "VOLUME")
    assert variables(CUDA)["TRITON_CACHE_DIR"].startswith(f"{volume}/")
    assert f"mkdir -m 1777 {volume}" in CUDA
    assert "gcc libc6-dev libpython3-dev" in CUDA  # what Triton compiles with, kept in the image
    assert "triton/backends/nvidia" not in CUDA  # brings the assembler


def test_cuda_is_not_replaced_by_empty_libraries() -> None:
    assert "stub-cuda" in CPU
    assert "stub-cuda" not in CUDA


def test_the_documented_command_builds_this_file_from_this_context() -> None:
    """The page's words are those in the Dockerfile's head, and name files that the context has."""
    page = (FOLDER.parent / "README.md").read_text()
    (command,) = re.findall(r"^    (buildah bud .*Dockerfile\.cuda.*)$", page, re.MULTILINE)
    assert f"#   {command}\n" in CUDA
    words = shlex.split(command)
    dockerfile, tag, context = words[words.index("-f") + 1], words[words.index("-t") + 1], words[-1]
    assert (ROOT / context / dockerfile).read_text() == CUDA
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    assert tag == f"exo-engine:{project['version']}-cuda"
    assert tag in re.findall(r"^        .*:/model:ro (\S+)$", page, re.MULTILINE)
    copied = [each.split()[:-1] for each in instructions(CUDA, "COPY") if "--from" not in each]
    sources = [source for each in copied for source in each]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_documented_volumes_are_those_of_the_image() -> None:
    page = (FOLDER.parent / "README.md").read_text()
    volumes = set(re.findall(r"-v \S+?:(/[\w-]+(?:/[\w-]+)*)", page))
    assert volumes == {instructions(CUDA, "VOLUME")[0], "/model"}

"""Which images there are and when one is built again, without building any."""

from __future__ import annotations

import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from exo_inference.engines import ENGINES, get_engine
from scripts.kubernetes import images, prerequisites


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("num_failures", [1, 2])
def test_a_build_that_fails_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, num_failures: int
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> None:
        commands.append(command)
        if len(commands) <= num_failures:
            raise images.BuildFailed("no package came")

    monkeypatch.setattr(images, "_run", run)
    monkeypatch.setattr(images, "_builder", lambda: "docker")
    if num_failures == 1:
        images._bud("tag", tmp_path / "Dockerfile", tmp_path, {})
    else:
        with pytest.raises(images.BuildFailed):
            images._bud("tag", tmp_path / "Dockerfile", tmp_path, {})
    assert len(commands) == 2
    assert commands[0] == commands[1]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo fetching; echo no route >&2; exit 3",
            "`sh` ended with 3: no route\nBefore that:\nfetching",
        ),
        ("exit 1", "`sh` ended with 1: it said nothing"),
        ("echo gone; exit 1", "`sh` ended with 1: gone"),
    ],
)
def test_a_failure_begins_with_the_last_line_of_what_was_said(script: str, message: str) -> None:
    with pytest.raises(images.BuildFailed) as caught:
        images._run(["sh", "-c", script])
    assert str(caught.value) == message


def test_every_source_of_every_image_exists() -> None:
    for image in images.IMAGES:
        for source in (image.dockerfile, *image.sources):
            assert (images.ROOT / source).exists(), f"{image.name}: {source}"


def test_every_dockerfile_is_among_its_images_sources() -> None:
    """So that an edit of it builds the image again."""
    for image in images.IMAGES:
        path = images.ROOT / image.dockerfile
        assert any(path.is_relative_to(images.ROOT / source) for source in image.sources)


@pytest.mark.parametrize("image", images.IMAGES, ids=lambda image: image.name)
def test_every_base_is_pinned_and_may_be_replaced(image: images.Image) -> None:
    lines = (images.ROOT / image.dockerfile).read_text().splitlines()
    (base,) = (line for line in lines if line.startswith("ARG BASE="))
    _, _, tag = base.rpartition(":")
    assert tag not in ("", "latest")
    assert any(character.isdigit() for character in tag)
    stages = {line.split()[-1] for line in lines if line.startswith("FROM") and " AS " in line}
    froms = {line.split()[1] for line in lines if line.startswith("FROM")}
    assert froms - stages <= {"${BASE}", "scratch"}


@pytest.mark.parametrize("image", images.IMAGES, ids=lambda image: image.name)
def test_every_image_ends_as_one_that_the_restricted_standard_allows(image: images.Image) -> None:
    lines = (images.ROOT / image.dockerfile).read_text().splitlines()
    final = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM")) :]
    users = [line for line in final if line.startswith("USER")]
    assert users[-1] == "USER 65532:65532"
    for word in ("HEALTHCHECK", "STOPSIGNAL SIGTERM", "ENTRYPOINT ["):
        assert any(line.startswith(word) for line in final), word


@pytest.mark.parametrize("image", images.IMAGES, ids=lambda image: image.name)
def test_what_pip_installs_is_held_against_hashes(image: images.Image) -> None:
    """But for builds of PyTorch that are not on pip's own index: their version alone is checked."""
    dockerfile = (images.ROOT / image.dockerfile).read_text()
    taken: set[str] = set()
    for command in _pip_commands(dockerfile):
        words = command.split()
        assert "--no-deps" in words, command
        if "--require-hashes" in words:
            named = [after for word, after in pairwise(words) if word == "-r"]
            assert named, command
            taken |= set(named)
        elif "wheel" in words:
            assert "--no-build-isolation" in words, command  # which takes what is not named
        elif "${TORCH_INDEX_URL}" in command:
            assert "constraints.txt" in words, command
        else:
            assert "--no-index" in words, command
    copied = set(re.findall(r"requirements/\w+\.txt", dockerfile))
    assert taken == copied == {each for each in image.sources if each.startswith("requirements/")}


def _pip_commands(dockerfile: str) -> list[str]:
    """Return the calls of pip, each in one line, with what a function of the same name adds to it."""
    joined = dockerfile.replace("\\\n", " ")
    added = " ".join(re.findall(r"pip\(\) \{(.*?)\"\$@\"; \}", joined))
    joined = re.sub(r"pip\(\) \{.*?\}", "", joined)
    parts = re.split(r"&&|;|\n", joined)
    found = [
        part.strip().removeprefix("RUN ") for part in parts if re.search(r"(?<![-\w])pip ", part)
    ]
    return [part if "-m pip" in part else f"{part} {added}" for part in found]


def test_an_image_is_known_by_the_content_of_its_files(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.py").write_text("1")
    before = images._hash("", [source])
    os.utime(source / "a.py", (0, 0))
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "a.pyc").write_text("x")
    (source / "libkernels.so").write_text("x")  # which no build is given
    assert images._hash("", [source]) == before
    (source / "a.py").write_text("2")
    assert images._hash("", [source]) != before
    (source / "a.py").rename(source / "b.py")
    assert images._hash("", [source]) != before


def test_an_image_that_is_built_is_not_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(images, "_bud", lambda *arguments: pytest.fail("it was built"))
    (image,) = (image for image in images.IMAGES if image.name == "exo-vllm")
    sources = [images.ROOT / source for source in image.sources]
    archive = images._archive("exo-vllm", images._hash(images._made_as(image, {}), sources))
    archive.touch()
    assert images.build(["exo-vllm"], offline=False) == [archive]


@pytest.mark.parametrize("image", images.IMAGES, ids=lambda image: image.name)
def test_an_image_is_tagged_as_the_chart_looks_for_it(image: images.Image) -> None:
    """By its engine's release, which is the platform's default; by the chart's own version else."""
    engine = image.name.removeprefix("exo-")
    wanted = get_engine(engine).version if engine in ENGINES else image_tag_of_the_charts()
    assert image.tag == wanted


def image_tag_of_the_charts() -> str:
    """Return what images of the project are tagged with where nothing else is said."""
    found = {
        re.search(r'^appVersion: "?([^"\n]+)"?$', path.read_text(), re.MULTILINE)
        for path in (images.ROOT / "charts").glob("*/Chart.yaml")
    }
    (version,) = {match[1] for match in found if match is not None}
    return version


def test_what_is_built_and_saved_has_the_engines_release_as_tag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []

    def record(command: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        commands.append(list(command))
        if "push" in command:
            Path(command[-1].split(":")[1]).touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(images, "_run", record)
    monkeypatch.setattr(images, "_builder", lambda: "buildah")
    (archive,) = images.build(["exo-llama-cpp"], offline=False)
    assert archive.exists()
    build, push = (next(c for c in commands if word in c) for word in ("build", "push"))
    assert build[build.index("--tag") + 1] == "localhost/exo-llama-cpp:b11243"
    assert push[-1].endswith(":localhost/exo-llama-cpp:b11243")


def test_a_dockerfile_that_names_no_release_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.setattr(images, "ROOT", tmp_path)
    with pytest.raises(images.BuildFailed, match="Dockerfile has no line ARG BASE=IMAGE:TAG"):
        _ = images.Image("exo-x", "Dockerfile", (), is_adapted=True).tag


def test_an_unknown_image_is_refused_with_those_there_are() -> None:
    with pytest.raises(images.BuildFailed, match="no image exo-vlm; there are exo-inference"):
        images.build(["exo-vlm"], offline=True)


def test_an_image_with_a_base_of_others_cannot_be_built_offline() -> None:
    with pytest.raises(images.BuildFailed, match="only a container registry has"):
        images.build(["exo-vllm"], offline=True)


def test_without_root_it_is_said_what_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        prerequisites.PrerequisiteMissing, match="cannot run a cluster as user 1000"
    ):
        prerequisites.ensure(prerequisites.CLUSTER, "run a cluster")


def test_without_apt_the_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(prerequisites.PrerequisiteMissing, match="missing buildah, runc"):
        prerequisites.ensure(("runc", "buildah"), "build images")

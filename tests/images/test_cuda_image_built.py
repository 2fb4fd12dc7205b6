"""The image for GPUs, really built, from all its stages: on the base that the other images have here, and as containers.

Two stand-ins: the base is one of debootstrap's, as no container registry is needed so, and PyTorch with its CUDA
libraries is not installed into it but lent by this machine where a test wants it. No test needs a GPU.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.free_ports import free_port
from scripts.kubernetes import binaries, images, prerequisites
from tests.kubernetes.test_cluster import wait_for

pytestmark = [pytest.mark.container_images, pytest.mark.timeout(900)]

DOCKERFILE = images.ROOT / "engine-images" / "exo-engine" / "Dockerfile.cuda"
TAG = "localhost/exo-engine-cuda-stand-in:test"
STUB = images.ROOT / "tests" / "images" / "stub_engine.py"
PROGRAM = "/opt/exo-engine/bin/exo-engine"
USER = 65532
KERNEL = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def double(numbers, SIZE: tl.constexpr):
    places = numbers + tl.arange(0, SIZE)
    tl.store(places, 2 * tl.load(places))


def tell(*, cache_hit, **others):
    print("found" if cache_hit else "compiled")


triton.knobs.compilation.listener = tell
source = ASTSource(double, {"numbers": "*fp32", "SIZE": "constexpr"}, {"SIZE": 64})
triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""


@dataclass(frozen=True)
class Built:
    """An image: what its last stage says, and its files."""

    config: dict[str, Any]
    files: Path

    @property
    def variables(self) -> dict[str, str]:
        return dict(each.split("=", 1) for each in self.config["Env"])


def buildah(*words: str) -> str:
    return images._run([*images._buildah(), *words]).stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    prerequisites.ensure((*prerequisites.IMAGES, "runc"), "build the image for GPUs")
    context = tmp_path_factory.mktemp("context")
    joined = DOCKERFILE.read_text().replace("\\\n", " ")
    for line in re.findall(r"^COPY (?!--from)(.*)$", joined, re.MULTILINE):
        for source in line.split()[:-1]:
            target = context / source
            target.parent.mkdir(parents=True, exist_ok=True)
            if (images.ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(images.ROOT / source, target, ignore=ignored)
            else:
                shutil.copy2(images.ROOT / source, target)
    (context / "requirements" / "torch.txt").write_text("# lent by the machine\n")
    with binaries.build_lock("images"):  # who builds next removes all containers
        images._ensure_base()
        images._bud(TAG, DOCKERFILE, context, {"BASE": images._BASE_TAG})
        container = buildah("from", "--pull-never", TAG).strip()
        try:
            found = json.loads(buildah("inspect", "--type=image", TAG))
            yield Built(found["Docker"]["config"], Path(buildah("mount", container).strip()))
        finally:
            buildah("rm", container)


class Container:
    """One container of the image, by runc, on the network of this machine.

    Args:
        image: whose files and variables it has.
        directory: for what belongs to it.
        words: what runs; None: the entry point.
        volumes: folders of this machine, and where they are.
        variables: more of them.
    """

    def __init__(
        self,
        image: Built,
        directory: Path,
        words: Sequence[str] | None = None,
        volumes: Mapping[Path, str] | None = None,
        **variables: str,
    ) -> None:
        self._name = f"exo-cuda-{uuid.uuid4().hex[:12]}"
        self._root = directory / "runc"
        bundle = directory / self._name
        bundle.mkdir()
        images._run(["runc", "spec", "--bundle", str(bundle)])
        config = json.loads((bundle / "config.json").read_text())
        user, _, group = image.config["User"].partition(":")
        config["root"] = {"path": str(image.files), "readonly": False}
        config["process"] |= {
            "terminal": False,
            "user": {"uid": int(user), "gid": int(group)},
            "cwd": image.config["WorkingDir"],
            "args": list(words or [*image.config["Entrypoint"], *image.config["Cmd"]]),
            "env": [f"{name}={value}" for name, value in {**image.variables, **variables}.items()],
            "capabilities": {},
        }
        config["linux"]["namespaces"] = [{"type": each} for each in ("pid", "ipc", "uts", "mount")]
        config["mounts"] += [
            {"destination": target, "type": "bind", "source": str(source), "options": ["rbind"]}
            for source, target in (volumes or {}).items()
        ]
        (bundle / "config.json").write_text(json.dumps(config))
        self.output = bundle / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*self._runc(), "run", "--bundle", str(bundle), self._name],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _runc(self) -> list[str]:
        return ["runc", "--root", str(self._root)]

    def run_inside(self, words: Sequence[str]) -> int:
        """Return the exit status of a program beside the first one."""
        command = [*self._runc(), "exec", self._name, *words]
        return subprocess.run(command, capture_output=True, check=False).returncode

    def signal(self, name: str) -> None:
        images._run([*self._runc(), "kill", self._name, name.removeprefix("SIG")])

    def wait(self) -> tuple[int, str]:
        """Return the exit status and what was printed."""
        return self.process.wait(), self.output.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            subprocess.run(
                [*self._runc(), "kill", self._name, "KILL"], capture_output=True, check=False
            )
            self.process.wait()


def run(image: Built, directory: Path, *words: str, **options: Any) -> tuple[int, str]:
    return Container(image, directory, words, **options).wait()


@pytest.fixture
def lent() -> dict[Path, str]:
    """PyTorch, Triton and what they need, as this machine has them, beside what the image has."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the image's Python is 3.11, and this machine's packages are for another one")
    import torch

    return {Path(torch.__file__).parents[1]: "/mnt"}


def with_lent(image: Built) -> str:
    return f"{image.variables['PYTHONPATH']}:/mnt"


def test_the_first_process_is_nobody_and_no_other_has_more_rights(
    image: Built, tmp_path: Path
) -> None:
    status, said = run(image, tmp_path, "python3", "-c", "import os; print(os.getuid(), os.getgid(), os.getpid())")  # fmt: skip
    assert (status, said.split()) == (0, [str(USER), str(USER), "1"])
    of_root = [
        path
        for folder in ("usr", "opt", "bin", "sbin")
        for path in (image.files / folder).rglob("*")
        if not path.is_symlink() and path.is_file() and path.stat().st_mode & 0o6000
    ]
    assert of_root == []


def test_the_program_is_there_whole_and_what_built_it_is_not(image: Built, tmp_path: Path) -> None:
    status, said = run(image, tmp_path, "exo-engine", "parameters", "--json")
    assert status == 0, said
    catalog = images.ROOT / "exo_inference" / "engines" / "catalog" / "exo.json"
    assert json.loads(said) == json.loads(catalog.read_text())
    absent = ("opt/build", "opt/wheel", "usr/bin/apt-get", "usr/bin/perl", "usr/bin/pip", "src")
    assert [name for name in absent if (image.files / name).exists()] == []
    assert set(os.listdir(image.files / "opt")) == {"exo", "exo-adapter", "exo-engine"}


@pytest.fixture
def started(image: Built, tmp_path: Path) -> Iterator[tuple[Container, Path]]:
    """The entry point, with the adapter tests' stub in place of the engine, and the stub's folder."""
    folder = tmp_path / "stub"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "model").touch()  # a folder that is empty has none
    program = tmp_path / "exo-engine"
    program.write_text(STUB.read_text())
    program.chmod(0o755)
    container = Container(
        image,
        tmp_path,
        volumes={folder: "/media", program: PROGRAM},
        STUB_DIR="/media",
        EXO_SERVED_MODEL_NAME="chat",
        EXO_MODEL_PATH="/media",
        EXO_HTTP_PORT=str(free_port()),
        EXO_PROBE_PORT=str(free_port()),
        EXO_TERMINATION_LOG="/tmp/termination-log",
    )
    try:
        has_begun = (folder / "argv").exists
        wait_for(lambda: has_begun() or container.process.poll() is not None, "it was started")
        assert has_begun(), container.output.read_text()
        yield container, folder
    finally:
        container.end()


def test_the_entry_point_starts_the_engine_for_gpus(started: tuple[Container, Path]) -> None:
    _, folder = started
    words = json.loads((folder / "argv").read_text())
    assert words[0] == "serve"
    assert words[words.index("--device") + 1] == "cuda"
    assert (folder / "argv").stat().st_uid == USER


def test_the_health_check_says_when_it_is_ready(
    image: Built, started: tuple[Container, Path]
) -> None:
    container, folder = started
    kind, *check = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    assert container.run_inside(check) == 1
    (folder / "healthy").touch()
    (folder / "metrics").touch()
    wait_for(lambda: container.run_inside(check) == 0, "it was healthy")


def test_the_signal_that_stops_it_ends_the_engine_and_then_the_container(
    image: Built, started: tuple[Container, Path]
) -> None:
    container, folder = started
    container.signal(image.config["StopSignal"])
    status, said = container.wait()
    assert status == 0, said
    assert (folder / "terminated").exists()


def test_an_engine_that_dies_ends_the_container_with_its_status(
    started: tuple[Container, Path],
) -> None:
    container, folder = started
    (folder / "exit").write_text("3")
    assert container.wait()[0] == 3


def test_where_no_gpu_is_the_engine_says_so_and_the_container_ends(
    image: Built, tmp_path: Path, lent: dict[Path, str]
) -> None:
    models = images.ROOT / "exo_inference" / "hub" / "builtin_models" / "tiny-chat"
    status, said = Container(
        image,
        tmp_path,
        volumes={**lent, models: "/media"},
        PYTHONPATH=with_lent(image),
        EXO_SERVED_MODEL_NAME="chat",
        EXO_MODEL_PATH="/media",
        EXO_HTTP_PORT=str(free_port()),
        EXO_PROBE_PORT=str(free_port()),
        EXO_TERMINATION_LOG="/tmp/termination-log",
        CUDA_VISIBLE_DEVICES="",
    ).wait()
    assert status not in (0, -signal.SIGKILL)
    assert "CUDA" in said


def test_what_one_container_compiled_the_next_one_finds_in_the_volume(
    image: Built, tmp_path: Path, lent: dict[Path, str]
) -> None:
    """A volume begins as the folder of the image: with its mode, and empty."""
    (place,) = image.config["Volumes"]
    in_image = image.files / place.lstrip("/")
    assert list(in_image.iterdir()) == []
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "double.py").write_text(KERNEL)

    def compile_in(volume: Path) -> str:
        status, said = run(
            image,
            tmp_path,
            *("python3", "/media/double.py"),
            volumes={**lent, volume: place, tmp_path / "script": "/media"},
            PYTHONPATH=with_lent(image),
        )
        assert status == 0, said
        return said.strip()

    volumes = [tmp_path / "one", tmp_path / "other"]
    for volume in volumes:
        volume.mkdir()
        volume.chmod(in_image.stat().st_mode & 0o7777)
    assert compile_in(volumes[0]) == "compiled"
    assert compile_in(volumes[0]) == "found"
    assert compile_in(volumes[1]) == "compiled"
    held = Path(image.variables["TRITON_CACHE_DIR"]).relative_to(place)
    assert list((volumes[0] / held).rglob("double.cubin"))


def test_triton_can_build_what_it_builds_on_each_machine(image: Built, tmp_path: Path) -> None:
    """A few lines of C against Python's headers, by a compiler that the image has."""
    lines = "echo '#include <Python.h>' | gcc -x c -shared -fPIC -I$(ls -d /usr/include/python3.*) -o /tmp/a.so -"
    status, said = run(image, tmp_path, "sh", "-c", lines)
    assert status == 0, said

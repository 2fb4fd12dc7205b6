"""Builds the project's images, and the base that tests build them on.

    python -m scripts.kubernetes.images NAME...             on the bases the Dockerfiles name
    python -m scripts.kubernetes.images --offline NAME...   on a base that debootstrap makes

The second needs no container registry: only Debian's packages and PyPI. An image that was built from
the same files before is not built again: archives are kept in the cache by a hash of what they are
made from. Uses buildah, podman or docker, whichever is found first. Called by `make images`, `cluster`
and `make test-kubernetes`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.kubernetes import binaries, prerequisites

ROOT = Path(__file__).resolve().parents[2]
TAG = "0.1.0"
"""Of the images whose program is ours."""

FORMER_IMAGES = ("exo-inference", "exo-engine")
"""What an installation of an earlier commit is made of."""

_DEBIAN = "bookworm"
_BASE_TAG = f"localhost/debian:{_DEBIAN}"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_RELEASE = re.compile(r"^ARG BASE=\S+:(?:server-cuda-|v)?(\S+)$", re.MULTILINE)
"""The engine's release in the tag of an upstream image."""


class BuildFailed(Exception):
    """An image could not be built."""


@dataclass(frozen=True, slots=True)
class Image:
    """One image of the project.

    Attributes:
        name: of the image.
        dockerfile: path below the root.
        sources: files and directories below the root that it is made from.
        offline: build arguments where no container registry is there; None where the base can come
            from nowhere else.
        is_adapted: it is an engine's own image with our entrypoint.
    """

    name: str
    dockerfile: str
    sources: tuple[str, ...]
    offline: dict[str, str] | None = field(default=None)
    is_adapted: bool = False

    @property
    def tag(self) -> str:
        """What the chart looks for: of an adapted image the release of the engine in its base.

        Raises:
            BuildFailed: the Dockerfile does not say it.
        """
        if not self.is_adapted:
            return TAG
        found = _RELEASE.search((ROOT / self.dockerfile).read_text())
        if found is None:
            raise BuildFailed(
                f"{self.dockerfile} has no line ARG BASE=IMAGE:TAG, so its engine's release is not known"
            )
        return found[1]


def _adapter_image(engine: str) -> Image:
    directory = f"engine-images/{engine}"
    sources = (directory, "engine-images/adapter")
    return Image(f"exo-{engine}", f"{directory}/Dockerfile", sources, is_adapted=True)


def _locked(*names: str) -> tuple[str, ...]:
    return tuple(f"requirements/{name}.txt" for name in names)


IMAGES = (
    Image(
        "exo-inference",
        "images/control-plane/Dockerfile",
        (
            "exo_inference",
            "charts/inference-model",
            "charts/inference-deployment",
            "images",
            "pyproject.toml",
            *_locked("build", "server", "kubernetes"),
        ),
        {"BASE": _BASE_TAG},
    ),
    Image(
        "exo-engine",
        "engine-images/exo-engine/Dockerfile",
        (
            "engine-images/exo-engine/src",
            "engine-images/exo-engine/pyproject.toml",
            "engine-images/exo-engine/hatch_build.py",
            "engine-images/exo-engine/Dockerfile",
            "engine-images/exo-engine/stub-cuda",
            "engine-images/adapter/exo_adapter",
            "images/strip-system",
            "constraints.txt",
            *_locked("build", "engine", "torch"),
        ),
        # PyPI has no builds of PyTorch for CPU alone.
        {"BASE": _BASE_TAG, "TORCH_INDEX_URL": ""},
    ),
    *(_adapter_image(engine) for engine in ("vllm", "sglang", "tensorrt-llm", "tgi", "llama-cpp")),
)


def build(names: Sequence[str], *, offline: bool) -> list[Path]:
    """Build images and return their OCI archives.

    Args:
        names: of images; those that are built already are not built again.
        offline: on a base of our own, without a container registry.

    Raises:
        PrerequisiteMissing, BuildFailed
    """
    chosen = [image for image in _chosen(names) if names or not offline or image.offline]
    with binaries.build_lock("images"):
        return [_build_one(image, offline=offline) for image in chosen]


def build_former(revision: str, tree: Path) -> list[Path]:
    """Build the images of the program and its engine as an earlier commit has them.

    They carry the commit as their tag, so that they stand beside today's.

    Args:
        revision: the commit, which names the archives too.
        tree: its files, as `git archive` writes them.

    Returns:
        Their OCI archives.

    Raises:
        PrerequisiteMissing, BuildFailed
    """
    archives = []
    with binaries.build_lock("images"):
        for image in _chosen(FORMER_IMAGES):
            archive = _archive(f"{revision}.{image.name}", _hash(str(image.offline), []))
            if not archive.exists():
                _build_archive(image, archive, f"localhost/{image.name}:{revision}", tree, True)
            archives.append(archive)
    return archives


def build_pause() -> Path:
    """Return an archive of the image whose process holds a pod's namespaces together."""
    prerequisites.ensure(("buildah", "catatonit"), "build images")
    program = Path(shutil.which("catatonit") or "catatonit")
    text = 'FROM scratch\nCOPY catatonit /\nUSER 65535:65535\nENTRYPOINT ["/catatonit", "-P"]\n'
    archive = _archive("pause", _hash(text, [program]))
    if not archive.exists():
        with tempfile.TemporaryDirectory() as directory:
            shutil.copy(program, directory)
            (Path(directory) / "Dockerfile").write_text(text)
            _bud("localhost/pause:1", Path(directory) / "Dockerfile", Path(directory), {})
        _save("localhost/pause:1", archive)
    return archive


def _chosen(names: Sequence[str]) -> list[Image]:
    known = {image.name: image for image in IMAGES}
    if unknown := set(names) - known.keys():
        raise BuildFailed(f"no image {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [known[name] for name in names] or list(IMAGES)


def _build_one(image: Image, *, offline: bool) -> Path:
    if offline and image.offline is None:
        raise BuildFailed(f"{image.name} has a base that only a container registry has")
    arguments = (image.offline or {}) if offline else {}
    sources = [ROOT / source for source in image.sources]
    archive = _archive(image.name, _hash(_made_as(image, arguments), sources))
    if not archive.exists():
        _build_archive(image, archive, f"localhost/{image.name}:{image.tag}", ROOT, offline)
    return archive


def _build_archive(image: Image, archive: Path, tag: str, root: Path, offline: bool) -> None:
    """Build an image from the files below a root."""
    if offline:
        prerequisites.ensure(prerequisites.IMAGES, "build images")
        _ensure_base()
    print(f"building {tag.rpartition('/')[2]} ...", file=sys.stderr, flush=True)
    begin = time.monotonic()
    _bud(tag, root / image.dockerfile, root, (image.offline or {}) if offline else {})
    _save(tag, archive)
    _tidy()
    size = archive.stat().st_size / 1e6
    print(f"  took {time.monotonic() - begin:.0f} s, {size:.0f} MB", file=sys.stderr, flush=True)


def _made_as(image: Image, arguments: dict[str, str]) -> str:
    """Return what an archive depends on besides its files; the tag is in it."""
    return f"{arguments}{image.tag if image.is_adapted else ''}"


def _ensure_base() -> None:
    """Make the base with debootstrap, once."""
    if _run([*_buildah(), "inspect", "--type=image", _BASE_TAG], check=False).returncode == 0:
        return
    print(f"making a base of Debian {_DEBIAN} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as directory:
        system = Path(directory) / "system"
        _run(["debootstrap", "--variant=minbase", _DEBIAN, str(system)])
        (Path(directory) / "Dockerfile").write_text("FROM scratch\nCOPY system /\n")
        _bud(_BASE_TAG, Path(directory) / "Dockerfile", Path(directory), {})


def _bud(tag: str, dockerfile: Path, context: Path, arguments: dict[str, str]) -> None:
    """Build one Dockerfile."""
    words = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    builder = _builder()
    if builder == "docker":
        command = ["docker", "build"]
    else:
        command = [
            *(_buildah() if builder == "buildah" else ["podman"]),
            *("build", "--isolation=chroot", "--layers", "--format=docker", *_lent_volumes()),
        ]
    build = [*command, *words, "--tag", tag, "--file", str(dockerfile), str(context)]
    try:
        _run(build)
    except BuildFailed as exc:
        # A package that did not come is fetched once more; steps that are done are kept.
        print(f"{exc}\nonce more ...", file=sys.stderr, flush=True)
        _run(build)


def _tidy() -> None:
    """Remove the containers of builds that were killed."""
    if _builder() == "buildah":
        _run([*_buildah(), "rm", "--all"], check=False)


def _lent_volumes() -> list[str]:
    """Return what a build borrows of this machine: how pip reaches its index."""
    lent = binaries.cache_dir() / "lent"
    lent.mkdir(parents=True, exist_ok=True)
    found = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ["[global]", "disable-pip-version-check = true", "timeout = 120"]
    lines += [f"index-url = {found.stdout.strip()}"] if found.returncode == 0 else []
    volumes = [f"{lent}/pip.conf:/etc/pip.conf:ro"]
    if _CERTIFICATES.exists():
        lines.append("cert = /run/certificates.crt")
        volumes.append(f"{_CERTIFICATES}:/run/certificates.crt:ro")
    (lent / "pip.conf").write_text("\n".join(lines) + "\n")
    return [f"--volume={volume}" for volume in volumes]


def _save(tag: str, archive: Path) -> None:
    """Write an archive, and remove those of the same image made from other files."""
    for old in archive.parent.glob(f"{archive.name.rpartition('-')[0]}-*.tar"):
        old.unlink()
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    if _builder() == "buildah":
        target = f"docker-archive:{partial}:{tag}"
        _run([*_buildah(), "push", "--disable-compression", tag, target])
    else:
        _run([_builder(), "save", "--output", str(partial), tag])
    partial.rename(archive)


def _builder() -> str:
    for name in ("buildah", "podman", "docker"):
        if shutil.which(name):
            return name
    raise BuildFailed("cannot build images: no buildah, podman or docker. Install one of them.")


def _buildah() -> list[str]:
    """Return buildah with storage of our own, so that nothing else on the machine is touched."""
    storage = binaries.cache_dir() / "storage"
    storage.mkdir(parents=True, exist_ok=True)
    driver = os.environ.get("STORAGE_DRIVER", "overlay")
    return [
        "buildah",
        f"--root={storage}/root",
        f"--runroot={storage}/run",
        f"--storage-driver={driver}",
    ]


def _archive(name: str, digest: str) -> Path:
    directory = binaries.cache_dir() / "images"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{name}-{digest}.tar"


def _hash(text: str, sources: Sequence[Path]) -> str:
    """Return a hash of the text and of the name and content of every file."""
    digest = hashlib.sha256(text.encode())
    for path in sorted(_files(sources)):
        digest.update(f"{path.name}\0{path.stat().st_mode & 0o111}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _files(sources: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that a build is given: what this machine compiled, `.dockerignore` leaves out."""
    for source in sources:
        if source.is_file():
            yield source
        for path in source.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so":
                yield path


def _run(command: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one step at low priority."""
    result = subprocess.run(
        ["nice", "-n", "10", *command], capture_output=True, text=True, check=False
    )
    if check and result.returncode:
        tail = (result.stdout + result.stderr).strip().splitlines()[-15:]
        last = tail[-1] if tail else "it said nothing"
        before = "\n".join(["\nBefore that:", *tail[:-1]]) if tail[1:] else ""
        raise BuildFailed(f"`{command[0]}` ended with {result.returncode}: {last}{before}")
    return result


def main(arguments: list[str]) -> int:
    """Build images and print where their archives are."""
    parser = argparse.ArgumentParser(prog="images", description=__doc__)
    parser.add_argument("--offline", action="store_true", help="without a container registry")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of images; all if none is named")
    options = parser.parse_args(arguments)
    try:
        for archive in build(options.names, offline=options.offline):
            print(archive)
    except (BuildFailed, prerequisites.PrerequisiteMissing) as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

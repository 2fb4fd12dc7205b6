"""Owns `requirements/`: which files of which releases `make setup` installs.

`constraints.txt` says the versions. pip takes no hashes from a constraints file, so every set of packages
that is installed together gets a requirements file with the SHA-256 of each file of each release:

    python -m scripts.lock_requirements           # needs `uv` and a package index
    python -m scripts.lock_requirements --check   # offline, a part of `make lint`
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
CONTROL_PLANE = "pyproject.toml"
ENGINE = "engine-images/exo-engine/pyproject.toml"
# PyTorch and what only its builds for CUDA need: an installation for CPU needs another build of it.
_TORCH = re.compile(r"(torch|triton|nvidia-|cuda-)")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


@dataclass(frozen=True)
class LockedSet:
    """What one file of `requirements/` holds.

    Attributes:
        project: the file that names the requirements.
        extras: of the project, besides its dependencies.
        after: sets that are installed before it, so that it need not repeat them.
        is_torch: only PyTorch and its CUDA libraries; None: all packages.
        is_build: what builds the project, in place of what it runs with.
    """

    project: str
    extras: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    is_torch: bool | None = field(default=None)
    is_build: bool = False

    def direct(self) -> list[Requirement]:
        """Return the requirements that the project names."""
        content = tomllib.loads((ROOT / self.project).read_text())
        project = content["project"]
        optional = project.get("optional-dependencies", {})
        # A build that is editable asks for one package more when it runs.
        named = (
            [*content["build-system"]["requires"], "editables"]
            if self.is_build
            else [
                *project["dependencies"],
                *(line for name in self.extras for line in optional[name]),
            ]
        )
        return [one for one in map(Requirement, named) if self.holds(one.name)]

    def holds(self, package: str) -> bool:
        """Return whether a package of the project belongs into the file."""
        return self.is_torch is None or self.is_torch == bool(
            _TORCH.match(canonicalize_name(package))
        )


SETS = {
    "build": LockedSet(CONTROL_PLANE, is_build=True),
    "server": LockedSet(CONTROL_PLANE, ("server", "tracing")),
    "kubernetes": LockedSet(CONTROL_PLANE, ("server", "tracing", "kubernetes"), ("server",)),
    "engine": LockedSet(ENGINE, ("tracing",), is_torch=False),
    "torch": LockedSet(ENGINE, ("tracing",), is_torch=True),
    "dev": LockedSet(
        CONTROL_PLANE,
        ("server", "tracing", "kubernetes", "dev"),
        ("build", "server", "kubernetes", "engine"),
    ),
}


def problems() -> Iterator[str]:
    """Yield what is not in step between projects, versions and hashes."""
    versions = _pins(_constraints().read_text())
    seen: dict[str, str] = {}
    for name, locked in SETS.items():
        for block in _blocks(_path(name).read_text()):
            if not _HASH.search(block):
                yield f"requirements/{name}.txt: no SHA-256 for {block.split()[0]}"
        seen |= (own := _pins(_path(name).read_text()))
        yield from _unmet(name, locked, own)
    for package in sorted(versions.keys() | seen.keys()):
        if versions.get(package) != seen.get(package):
            yield (
                f"{package}: constraints.txt has {versions.get(package)}, "
                f"requirements/ has {seen.get(package)}"
            )


def _unmet(name: str, locked: LockedSet, own: dict[str, str]) -> Iterator[str]:
    pins = dict(own)
    for before in locked.after:
        pins |= _pins(_path(before).read_text())
    for requirement in locked.direct():
        version = pins.get(canonicalize_name(requirement.name))
        if version is None or version not in requirement.specifier:
            yield f"requirements/{name}.txt: {locked.project} asks for {requirement}, found {version}"


def write() -> None:
    """Resolve every set with the versions of `constraints.txt`, and write it with its hashes."""
    written: dict[str, list[str]] = {}
    for name, locked in SETS.items():
        known = {block for before in locked.after for block in written[before]}
        written[name] = [
            block
            for block in _blocks(_resolved(locked))
            if locked.holds(block.partition("==")[0]) and block not in known
        ]
        head = "# Written by `python -m scripts.lock_requirements`; versions are chosen in constraints.txt.\n"
        _path(name).write_text(head + "".join(written[name]))


def _resolved(locked: LockedSet) -> str:
    """Return what uv makes of a set, for all platforms and every Python since 3.11."""
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit("error: cannot resolve the requirements: no uv. Run `pip install uv`.")
    with tempfile.NamedTemporaryFile("w", suffix=".in") as wanted:
        # Torch's own requirements are those of its set: all of the project are resolved.
        everything = LockedSet(locked.project, locked.extras, is_build=locked.is_build)
        wanted.write("\n".join(map(str, everything.direct())))
        wanted.flush()
        options = ("--universal", "--generate-hashes", "--no-header", "--no-annotate", "--quiet")
        versions = ("--python-version=3.11", f"--constraints={_constraints()}", "--no-config")
        command = [uv, "pip", "compile", *options, *versions, wanted.name]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _blocks(text: str) -> list[str]:
    """Return the requirements of a file, each with its hashes."""
    return re.findall(r"^[A-Za-z0-9].*\n(?:[ \t].*\n)*", text, re.MULTILINE)


def _pins(text: str) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in _PIN.findall(text)}


def _constraints() -> Path:
    return ROOT / "constraints.txt"


def _path(name: str) -> Path:
    return ROOT / "requirements" / f"{name}.txt"


def main(arguments: list[str]) -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(prog="lock_requirements", description=__doc__)
    parser.add_argument("--check", action="store_true", help="offline; changes nothing")
    if not parser.parse_args(arguments).check:
        write()
    found = list(problems())
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    if found:
        print("Run `python -m scripts.lock_requirements`.", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

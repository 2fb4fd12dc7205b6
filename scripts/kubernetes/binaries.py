"""The programs of a Kubernetes: found where they are, otherwise built from Go modules and kept.

Each program is looked for in KUBEBUILDER_ASSETS, on the PATH and in the cache, in this order. What
is nowhere is built once into `$XDG_CACHE_HOME/exo-inference/kubernetes/<component>-<version>`; a
component that is complete is never built again, so a run that was interrupted goes on with the next.
All versions are in `COMPONENTS`. Called by `kubernetes.clusters`, the tests and by hand:

    python -m scripts.kubernetes.binaries            build what is missing (minutes, the first time)
    python -m scripts.kubernetes.binaries --list     say where each program is
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

API_SERVER = ("etcd", "kube-apiserver")
"""What a Kubernetes API without nodes needs."""


class ProgramsMissing(Exception):
    """Programs are neither on this machine nor in the cache."""


class BuildFailed(Exception):
    """A component could not be built."""


@dataclass(frozen=True, slots=True)
class Component:
    """One Go module and the programs that are built from it.

    Attributes:
        name: of the directory in the cache, with the version.
        module: Go module.
        version: its version, without the `v`.
        programs: package of each program, below the module's name.
        tags: build tags.
        version_package: package whose variable `gitVersion` clients parse; a build from a module
            does not set it by itself.
        data: directories of the module to keep beside the programs, by the name they get.
    """

    name: str
    module: str
    version: str
    programs: dict[str, str]
    tags: str = ""
    version_package: str = ""
    data: dict[str, str] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        """Where its programs are once they are built."""
        return cache_dir() / f"{self.name}-{self.version}"


def _kubernetes(name: str, *programs: str) -> Component:
    return Component(
        name=name,
        module="k8s.io/kubernetes",
        version="1.36.3",
        programs={program: f"cmd/{program}" for program in programs},
        version_package="k8s.io/component-base/version",
    )


COMPONENTS = (
    Component("etcd", "go.etcd.io/etcd/server/v3", "3.6.13", {"etcd": ""}),
    _kubernetes("kube-apiserver", "kube-apiserver"),
    _kubernetes("kubernetes", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"),
    _kubernetes("kubectl", "kubectl"),
    Component(
        "containerd",
        "github.com/containerd/containerd/v2",
        "2.4.2",
        {
            "containerd": "cmd/containerd",
            "containerd-shim-runc-v2": "cmd/containerd-shim-runc-v2",
            "ctr": "cmd/ctr",
        },
        tags="no_btrfs",
    ),
    Component(
        "kwok",
        "sigs.k8s.io/kwok",
        "0.8.0",
        {"kwok": "cmd/kwok"},
        data={"stages": "kustomize/stage"},
    ),
)
"""Everything that is built, the API server first because most tests need nothing else."""


def cache_dir() -> Path:
    """Return where built programs are kept, outside of the checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "exo-inference" / "kubernetes"


def all_programs() -> tuple[str, ...]:
    """Return the name of every program that can be built."""
    return tuple(program for component in COMPONENTS for program in component.programs)


def find(program: str) -> Path | None:
    """Return where a program is, or None."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(Path(assets) / program, os.X_OK):
        return Path(assets) / program
    if found := shutil.which(program):
        return Path(found)
    built = _component_of(program).directory / program
    return built if built.is_file() else None


def require(programs: Iterable[str]) -> dict[str, Path]:
    """Return where each program is.

    Raises:
        ProgramsMissing: names all that are missing.
    """
    found = {program: find(program) for program in programs}
    if missing := [program for program, path in found.items() if path is None]:
        raise ProgramsMissing(
            f"not on this machine: {', '.join(missing)}. Run `make kubernetes-binaries`."
        )
    return {program: path for program, path in found.items() if path is not None}


def data_of(component: str, name: str) -> Path:
    """Return a data directory of a component, fetching the module where it is not in the cache.

    Raises:
        BuildFailed
    """
    (wanted,) = (item for item in COMPONENTS if item.name == component)
    kept = wanted.directory / name
    if not kept.is_dir():
        wanted.directory.mkdir(parents=True, exist_ok=True)
        _copy_data(wanted, wanted.directory, (name,))
    return kept


def build(programs: Iterable[str]) -> None:
    """Build those of the programs that are nowhere.

    Raises:
        BuildFailed
    """
    wanted = set(programs)
    with build_lock("programs"):
        for component in COMPONENTS:
            needed = wanted & component.programs.keys()
            if all(find(program) for program in needed):
                continue
            _build(component)


def _component_of(program: str) -> Component:
    return next(component for component in COMPONENTS if program in component.programs)


@contextmanager
def build_lock(name: str) -> Iterator[None]:
    """Let one build of a kind write to the cache; a second one waits and then finds all done."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with (cache_dir() / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(component: Component) -> None:
    """Build into a temporary directory and move it into place when it is complete."""
    if shutil.which("go") is None:
        raise BuildFailed(
            f"cannot build {component.name} {component.version}: no `go` on the PATH. "
            "Install Go 1.26 or newer, or name a directory with the programs in KUBEBUILDER_ASSETS."
        )
    print(f"building {component.name} {component.version} ...", file=sys.stderr, flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=".build-") as directory:
        work, output = Path(directory) / "module", Path(directory) / "bin"
        work.mkdir()
        output.mkdir()
        _write_module(component, work)
        for program, package in component.programs.items():
            _go_build(component, work, output / program, package)
        _copy_data(component, output, component.data)
        shutil.rmtree(component.directory, ignore_errors=True)
        output.rename(component.directory)
    print(f"  took {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def _write_module(component: Component, work: Path) -> None:
    """Write a module whose only use is to require this one; dependencies of tools disagree."""
    replaced = _staging_modules(component) if component.module == "k8s.io/kubernetes" else ()
    # k8s.io/kubernetes requires its own libraries as v0.0.0, from its own tree. They are published
    # as v0.<minor>.<patch>.
    version = f"v0.{component.version.removeprefix('1.')}"
    lines = [
        "module tools",
        "go 1.26",
        f"require {component.module} v{component.version}",
        *(f"replace {module} => {module} {version}" for module in replaced),
    ]
    (work / "go.mod").write_text("\n".join(lines) + "\n")


def _staging_modules(component: Component) -> tuple[str, ...]:
    text = (_download(component) / "go.mod").read_text()
    return tuple(re.findall(r"^\s*(?:replace )?(\S+) => \./staging/", text, re.MULTILINE))


def _go_build(component: Component, work: Path, output: Path, package: str) -> None:
    flags = "-s -w"
    if component.version_package:
        major, minor, _ = component.version.split(".")
        values = {"gitVersion": f"v{component.version}", "gitMajor": major, "gitMinor": minor}
        flags += "".join(f" -X {component.version_package}.{k}={v}" for k, v in values.items())
    path = f"{component.module}/{package}".rstrip("/")
    options = ["-mod=mod", "-trimpath", "-tags", component.tags, "-ldflags", flags]
    _go(["build", *options, "-o", str(output), path], work)


def _copy_data(component: Component, target: Path, names: Iterable[str]) -> None:
    for name in names:
        source = _download(component) / component.data[name]
        shutil.copytree(source, target / name, copy_function=shutil.copyfile)
        for path in (target / name).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)  # Go's cache is read-only


def _download(component: Component) -> Path:
    """Return the directory of the component's module in Go's cache."""
    with tempfile.TemporaryDirectory() as directory:
        name = f"{component.module}@v{component.version}"
        answer = json.loads(_go(["mod", "download", "-json", name], Path(directory)))
    return Path(answer["Dir"])


def _go(arguments: list[str], work: Path) -> str:
    """Run Go at low priority and return what it printed."""
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    result = subprocess.run(
        ["nice", "-n", "10", "go", *arguments],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        tail = "\n".join(result.stderr.strip().splitlines()[-15:])
        raise BuildFailed(f"`go {' '.join(arguments)}` failed:\n{tail}")
    return result.stdout


def main(arguments: list[str]) -> int:
    """Build or list the programs."""
    if arguments == ["--list"]:
        for program in all_programs():
            print(f"{program:26}{find(program) or 'missing'}")
        return 0
    if arguments:
        print("usage: python -m scripts.kubernetes.binaries [--list]", file=sys.stderr)
        return 2
    try:
        build(all_programs())
    except BuildFailed as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

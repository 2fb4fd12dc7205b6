"""What `make setup` installs is what the projects ask for, in versions and files that are written down."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import lock_requirements


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the files that have to be in step."""
    real = lock_requirements.ROOT
    shutil.copytree(real / "requirements", tmp_path / "requirements")
    for name in ("constraints.txt", lock_requirements.CONTROL_PLANE, lock_requirements.ENGINE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(real / name, tmp_path / name)
    monkeypatch.setattr(lock_requirements, "ROOT", tmp_path)
    return tmp_path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_files_versions_and_projects_are_in_step(copy: Path) -> None:
    assert list(lock_requirements.problems()) == []


def test_version_without_its_files_is_named(copy: Path) -> None:
    change(copy / "constraints.txt", "\nclick==", "\nclick==99.")
    (problem,) = lock_requirements.problems()
    assert problem.startswith("click: constraints.txt has 99.")


def test_requirement_without_a_file_is_named(copy: Path) -> None:
    change(copy / "pyproject.toml", '"click>=8.2"', '"click>=999"')
    problems = list(lock_requirements.problems())
    assert "requirements/server.txt: pyproject.toml asks for click>=999" in problems[0]


def test_requirement_of_the_engine_without_a_file_is_named(copy: Path) -> None:
    change(copy / lock_requirements.ENGINE, '"torch>=2.7"', '"torch>=2.7", "left-pad"')
    (problem,) = lock_requirements.problems()
    assert "asks for left-pad, found None" in problem


def test_file_without_a_hash_is_named(copy: Path) -> None:
    locked = copy / "requirements/torch.txt"
    change(locked, "--hash=sha256:", "--hash=md5:")
    assert "requirements/torch.txt: no SHA-256 for torch==" in "\n".join(
        lock_requirements.problems()
    )


def test_pip_refuses_a_file_with_another_hash(tmp_path: Path) -> None:
    """Pip itself, on a wheel on this disk: the options of the Makefile are those that enforce."""
    wheel = tmp_path / "left_pad-1.0-py3-none-any.whl"
    wheel.write_bytes(b"not what was locked")
    (tmp_path / "locked.txt").write_text(f"left-pad==1.0 --hash=sha256:{'0' * 64}\n")
    makefile = (lock_requirements.ROOT / "Makefile").read_text()
    (options,) = (
        line.partition(" install ")[2].split()
        for line in makefile.splitlines()
        if line.startswith("LOCKED ")
    )
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--isolated", "install", *options),
            *("--no-index", f"--find-links={tmp_path}", f"--target={tmp_path / 'target'}"),
            *("-r", str(tmp_path / "locked.txt")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert "DO NOT MATCH THE HASHES" in result.stderr

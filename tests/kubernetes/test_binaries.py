"""Where the programs of a Kubernetes come from, without building any."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.kubernetes import binaries


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is on the PATH, in KUBEBUILDER_ASSETS or in the cache."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def put(directory: Path, program: str = "etcd") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / program).touch(mode=0o755)
    return directory / program


def built(component: str) -> Path:
    (found,) = (item for item in binaries.COMPONENTS if item.name == component)
    return found.directory


def test_assets_come_before_the_path_and_the_path_before_the_cache(tmp_path: Path) -> None:
    in_cache = put(built("etcd"))
    assert binaries.find("etcd") == in_cache
    on_path = put(tmp_path / "path")
    assert binaries.find("etcd") == on_path
    in_assets = put(tmp_path / "assets")
    assert binaries.find("etcd") == in_assets


def test_a_file_that_cannot_be_run_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path / "assets").chmod(0o644)
    on_path = put(tmp_path / "path")
    assert binaries.find("etcd") == on_path


def test_all_that_is_missing_is_named_at_once() -> None:
    put(built("etcd"))
    with pytest.raises(binaries.ProgramsMissing, match=r"kube-apiserver, kwok\. Run `make kub"):
        binaries.require(["etcd", "kube-apiserver", "kwok"])


def test_the_cache_is_kept_by_version() -> None:
    assert built("etcd").name == "etcd-3.6.13"
    assert built("etcd").parent == binaries.cache_dir()


def test_without_go_a_build_says_what_is_missing() -> None:
    with pytest.raises(binaries.BuildFailed, match=r"cannot build kwok .* no `go` on the PATH"):
        binaries.build(["kwok"])


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    put(tmp_path / "path", "kwok")
    binaries.build(["kwok"])  # would fail: there is no Go


def test_every_program_is_of_one_component() -> None:
    programs = binaries.all_programs()
    assert len(programs) == len(set(programs))
    assert set(binaries.API_SERVER) <= set(programs)

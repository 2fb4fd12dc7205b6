"""A run of the benchmark on the processor says on which instructions its figures were taken."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.cpu import instructions, page
from benchmarks.cpu.instructions import of_kernels, of_processor
from benchmarks.cpu.report import Report, commit, machine

EPYC = "processor\t: 0\nflags\t\t: fpu avx2 avx512bw avx_vnni avx512_bf16 avx512_vnni\nprocessor\t: 1\n"


@pytest.mark.parametrize(
    ("cpuinfo", "told"),
    [
        (EPYC, "AVX-512 BF16, VNNI"),
        ("flags : avx2 avx512bw avx512_vnni avx512_bf16 amx_tile", "AMX, AVX-512 BF16, VNNI"),
        ("flags : sse2 avx2 avx512bw", "AVX-512"),
        ("flags : sse2 avx2", "AVX2"),
        ("Features\t: fp asimd bf16 i8mm", "BF16, I8MM"),
        ("flags : sse2", ""),
        ("", ""),
    ],
)
def test_a_processor_is_told_by_the_best_that_it_has_of_each_kind(cpuinfo: str, told: str) -> None:
    assert of_processor(cpuinfo) == told


def test_kernels_that_are_held_to_less_are_told_with_what_holds_them() -> None:
    pytest.importorskip("exo_engine")
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in instructions.VARIABLES["avx2"]
    }
    held = {**own, "EXO_ENGINE_CPU_KERNELS": "off", "ATEN_CPU_CAPABILITY": "avx2"}
    told = "none: PyTorch computes (EXO_ENGINE_CPU_KERNELS=off ATEN_CPU_CAPABILITY=avx2)"
    assert of_kernels(held) == told


def test_nothing_is_told_where_the_engine_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions.sys, "executable", shutil.which("false"))
    assert of_kernels() == ""


def test_a_page_names_the_commit_and_the_processors_generation() -> None:
    """Processors of one name differ by a third."""
    report = Report("x", 3, is_quick=False, output_tokens=8, commit="commit 1234567", made="1999")
    assert page._head(report).startswith(f"Made on 1999 at commit 1234567 by `x`: {machine()};")
    if os.uname().machine == "x86_64":
        assert "(family " in machine()


def test_a_commit_is_told_where_there_is_a_clone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.cpu.report._ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() == ""
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert commit() == "", "a machine without git"
    for words in (["init"], ["commit", "--allow-empty", "-m", "first"]):
        names = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        subprocess.run(
            ["git", *names, "-c", "commit.gpgsign=false", *words], cwd=tmp_path, check=True
        )
    assert re.fullmatch("commit [0-9a-f]{7,}", commit())
    (tmp_path / "file").touch()
    assert "changes" not in commit(), "files that git does not know are no sources"
    subprocess.run(["git", "add", "file"], cwd=tmp_path, check=True)
    assert commit().endswith(" and changes")


def test_a_page_has_them_where_they_are_known() -> None:
    """Figures that are kept of older runs are not told as those of this machine."""
    report = Report("x", rounds=3, is_quick=False, output_tokens=8, kernels="avx2")
    assert report.machine == machine()
    report.shapes["s"] = {"tie_word_embeddings": True}
    report.flags["exo-engine-bf16"] = report.flags["machine"] = []
    report.versions["exo-engine-bf16"] = "1"
    report.add("s", "exo-engine-bf16", "many", 0, {"tokens_per_second": 1.0}, 0.0)
    text = page.as_markdown(page.parts_of(report))
    assert "; kernels of exo-engine: avx2. Medians" in text
    kept = dataclasses.asdict(report)
    del kept["kernels"]
    del kept["commit"]
    older = page.as_markdown(page.parts_of(Report(**kept)))
    assert older == text.replace("; kernels of exo-engine: avx2", "")

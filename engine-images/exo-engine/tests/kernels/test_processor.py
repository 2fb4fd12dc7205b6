"""What the processor computes fast."""

from __future__ import annotations

import pytest
from exo_engine.kernels import VARIABLE, processor
from exo_engine.kernels.processor import has_bfloat16, is_fast_in_bfloat16

from ..cpu_kernels import PATHS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 sse\n", True),
        ("processor\t: 0\nflags\t\t: fpu amx_tile amx_bf16\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f\nbugs\t\t: bf16\n", False),
        ("", False),
    ],
    ids=["vectors", "tiles", "arm", "neither", "nothing"],
)
def test_the_processor_says_so(tmp_path, text, expected):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    assert has_bfloat16(tmp_path) is expected


def test_a_name_of_any_bytes_is_in_nobodys_way(tmp_path):
    (tmp_path / "proc").mkdir()
    text = b"processor\t: 0\nmodel name\t: QEMU \xae\nflags\t\t: fpu avx512_bf16\n"
    (tmp_path / "proc/cpuinfo").write_bytes(text)
    assert has_bfloat16(tmp_path)


def test_where_the_kernel_says_nothing_it_is_not_there(tmp_path):
    assert not has_bfloat16(tmp_path)


@pytest.mark.parametrize("path", ["off", *PATHS])
def test_vectors_stand_in_for_hardware_where_kernels_use_them(path, monkeypatch):
    monkeypatch.setenv(VARIABLE, path)
    monkeypatch.setattr(processor, "has_bfloat16", lambda: False)
    assert is_fast_in_bfloat16() == (path not in ("off", "plain"))
    monkeypatch.setattr(processor, "has_bfloat16", lambda: True)
    assert is_fast_in_bfloat16()

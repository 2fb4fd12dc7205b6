"""Whether bfloat16 is computed in hardware is read from what the kernel says of the processor."""

from __future__ import annotations

import pytest
from exo_engine.core.host_memory import has_bfloat16


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


def test_where_the_kernel_says_nothing_it_is_not_there(tmp_path):
    assert not has_bfloat16(tmp_path)

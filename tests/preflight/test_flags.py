"""Flags, read once and handed on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exo_inference.preflight import is_written, read_flags, read_settings, written_flags


@pytest.mark.parametrize(
    ("flags", "engine", "version", "expected"),
    [
        (("--max_model_len", "3000"), "vllm", None, True),
        (("--max-model-len=x",), "exo", None, True),
        (("--max-model-lenx=3000",), "vllm", None, False),
        (("--served-model-name", "--max-model-len=3000"), "vllm", None, True),
        (("--served-model-name=--max-model-len",), "vllm", None, False),
        (("--max-model-len=3000",), "vllm", "0.99.0", True),
        (("--seed=3000",), "vllm", "no release", False),
    ],
)
def test_a_flag_is_written_where_the_engine_reads_it(
    flags: tuple[str, ...], engine: str, version: str | None, expected: bool
) -> None:
    assert is_written("max-model-len", flags, engine, version) is expected


ITEMS = ("--seed", "-tp", "2", "--lora-modules", "a=/x", "--hf-overrides.a", "stray", "--none=1")


@given(st.lists(st.sampled_from(ITEMS)).map(tuple))
def test_every_item_is_kept_in_its_place(flags: tuple[str, ...]) -> None:
    written = written_flags(read_flags(flags))
    assert tuple(item for flag in written for item in flag.items) == flags


def test_a_flag_that_is_no_setting_is_kept_under_its_name_and_its_value_is_read() -> None:
    flags = ("--hf-overrides.a=1", "--max-num-seqs=3", "--hf_overrides.b", "2", "stray")
    found = read_settings(flags)
    assert [each.name for each in found.others] == ["hf-overrides", "hf-overrides", ""]
    assert found.hf_overrides == {"a": 1, "b": 2}
    assert found.format() == ["--max-num-seqs=3", "--hf-overrides.a=1", "--hf_overrides.b", "2", "stray"]  # fmt: skip

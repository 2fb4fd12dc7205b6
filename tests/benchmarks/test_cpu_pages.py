"""Where the figures of a run are kept is checked before it begins."""

from __future__ import annotations

import pytest

from benchmarks.cpu.__main__ import read_options


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--page", "nonesuch", "--write"], "there is no page docs/benchmarks/cpu-nonesuch.md"),
        (["--page", "../x", "--write"], "is not of small letters and digits"),
        (["--page", "avx2"], "--instructions has a page of its own"),
        (["--page", "zen4", "--instructions", "avx2"], "--instructions has a page of its own"),
    ],
)
def test_a_page_that_is_not_there_is_said_before_hours_are_measured(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read_options(words)
    assert told in capsys.readouterr().err

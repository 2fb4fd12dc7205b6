"""A check that cannot be made here is a skip for people and a failure where all must be made."""

from __future__ import annotations

import pytest

from tests.skipping import skip_check


@pytest.mark.parametrize(
    ("ci", "ends"),
    [("true", pytest.fail.Exception), ("1", pytest.fail.Exception), ("", pytest.skip.Exception), ("false", pytest.skip.Exception)],
)  # fmt: skip
def test_a_check_that_is_left_out_fails_under_ci_alone(
    monkeypatch: pytest.MonkeyPatch, ci: str, ends: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(ends, match="no promtool"):
        skip_check("no promtool")

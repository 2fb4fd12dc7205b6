"""A fault that breaks what it is tried on must not fail the ones after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.kubernetes.stand import Stand


class _Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextlib.contextmanager
    def put_up(self, number: int) -> Iterator[int]:
        self.lines.append(f"up {number}")
        try:
            yield number
        finally:
            self.lines.append(f"down {number}")


def test_users_that_pass_share_one() -> None:
    log = _Log()
    stand = Stand(log.put_up)
    for _ in range(3):
        with stand.lend() as number:
            assert number == 0
    assert log.lines == ["up 0"]
    stand.close()
    assert log.lines == ["up 0", "down 0"]


def test_the_user_after_a_failed_one_gets_another() -> None:
    log = _Log()
    stand = Stand(log.put_up)
    with pytest.raises(ValueError, match="broken"), stand.lend():
        raise ValueError("broken")
    with stand.lend() as number:
        assert number == 1
    assert log.lines == ["up 0", "down 0", "up 1"]


def test_one_that_cannot_be_put_up_is_tried_again() -> None:
    numbers = []

    @contextlib.contextmanager
    def put_up(number: int) -> Iterator[int]:
        numbers.append(number)
        if number == 0:
            raise ValueError("not yet")
        yield number

    stand = Stand(put_up)
    with pytest.raises(ValueError, match="not yet"), stand.lend():
        pass
    with stand.lend() as number:
        assert number == 1
    assert numbers == [0, 1]

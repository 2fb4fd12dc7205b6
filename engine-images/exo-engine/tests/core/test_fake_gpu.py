"""The double of a GPU refuses what a GPU would have the host wait for, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ..fake_gpu import NoWaiting

NUMBERS = torch.tensor([3, 0, 2, 2])
MASK = NUMBERS > 1

WAITING: dict[str, Callable[[], object]] = {
    "one number": lambda: NUMBERS[0].item(),
    "whether it is true": lambda: bool(MASK[0]),
    "where it is true": lambda: torch.where(MASK),
    "what is true": lambda: NUMBERS[MASK],
    "what is true, in one of two": lambda: torch.ones(4, 4)[:, MASK],
    "set what is true": lambda: NUMBERS.clone().index_put_((MASK,), torch.tensor(1)),
    "set by brackets": lambda: NUMBERS.clone().__setitem__(MASK, NUMBERS[:3]),
    "how many": lambda: torch.repeat_interleave(NUMBERS, NUMBERS),
    "once each": lambda: NUMBERS.unique(),
    "are they equal": lambda: torch.equal(NUMBERS, NUMBERS),
    "are they close": lambda: torch.allclose(NUMBERS.float(), NUMBERS.float()),
}
TOLD: dict[str, Callable[[], Tensor]] = {
    "places": lambda: NUMBERS[torch.tensor([0, 2])],
    "set places": lambda: NUMBERS.clone().index_put_((torch.tensor([0, 2]),), torch.tensor(1)),
    "a number where it is true": lambda: torch.where(MASK, NUMBERS, 0),
    "filled where it is true": lambda: NUMBERS.masked_fill(MASK, 1),
    "so many": lambda: torch.repeat_interleave(NUMBERS, NUMBERS, output_size=7),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_depends_on_numbers_is_waited_for(name: str) -> None:
    WAITING[name]()
    with NoWaiting(), pytest.raises(AssertionError, match="the host would wait for aten"):
        WAITING[name]()


@pytest.mark.parametrize("name", TOLD)
def test_what_has_a_known_size_is_not(name: str) -> None:
    with NoWaiting():
        found = TOLD[name]()
    assert torch.equal(found, TOLD[name]())

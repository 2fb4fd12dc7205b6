"""Ways to choose tokens from logits, told to the device in one go: captured per number of rows, then repeated.

They read logits where the graphs of the model leave them, and one table of numbers. What changes logits before (bias,
penalties, words, masks) stands between the two, and asks the host for nothing either.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exo_engine.core.graphs.device import Captured, DeviceOps, Outputs
from exo_engine.sampling.draws import Ways, choose

_FIELDS = 5  # of a table of `sampling.draws`
_CAPTURED = (Ways.PLAIN | Ways.CANDIDATES | Ways.MASS, Ways.CANDIDATES, Ways.PLAIN, Ways(0))
"""What takes most memory first. A top-k above the candidates is rare and has none."""


class ChoiceGraphs:
    """Graphs over the beginning of one tensor of logits.

    Args:
        logits: (most rows, V) float32, which stays where it is.
        ops: of the device.
    """

    def __init__(self, logits: Tensor, ops: DeviceOps) -> None:
        self._logits, self._ops = logits, ops
        self._numbers = torch.zeros(
            _FIELDS * len(logits), dtype=torch.float64, device=logits.device
        )
        self._captured: dict[tuple[int, Ways], Captured] = {}

    @property
    def kinds(self) -> list[int]:
        """For how many rows there are graphs, the most first."""
        return row_counts(len(self._logits))[::-1]

    @torch.inference_mode()
    def capture(self, num_rows: int) -> None:
        """Capture all ways to choose for one of `kinds`."""
        for ways in _CAPTURED:
            captured = self._ops.capture(partial(self._run, num_rows, ways))
            self._captured[num_rows, ways] = captured

    @staticmethod
    def can_choose(ways: Ways) -> bool:
        """Whether there are graphs that draw in these ways."""
        return ways in _CAPTURED[0]

    def choose(
        self, num_rows: int, table: NDArray[np.float64] | None, ways: Ways
    ) -> tuple[Tensor, Tensor]:
        """Choose tokens from the first rows of the logits as they are.

        Args:
            num_rows: N.
            table: (5, N), see `sampling.draws`; None: all rows are greedy.
            ways: what its rows need.

        Returns:
            Tokens (N,) int64, and (N,) bool, whether a row's largest logit is finite; overwritten by the next step.
        """
        size = next(each for each in row_counts(len(self._logits)) if each >= num_rows)
        if table is not None:
            padded = np.zeros((_FIELDS, size))
            padded[:, :num_rows] = table
            self._ops.upload(torch.from_numpy(padded.ravel()), self._numbers)
        least = min((each for each in _CAPTURED if ways in each), key=lambda each: each.value)
        captured = self._captured[size, least]
        captured.replay()
        tokens, is_finite = captured.outputs
        return tokens[:num_rows], is_finite[:num_rows]

    def _run(self, num_rows: int, ways: Ways) -> Outputs:
        table = self._numbers[: _FIELDS * num_rows].view(_FIELDS, num_rows)
        return choose(self._logits[:num_rows], table, ways)


def row_counts(most: int) -> list[int]:
    """Return for how many rows there are graphs: at most a third is filled up, beyond the smallest ones."""
    return [*_halves_and_powers(most), most]


def _halves_and_powers(most: int) -> Iterator[int]:
    power = 1
    while power < most:
        yield power
        if power > 1 and power + power // 2 < most:
            yield power + power // 2
        power *= 2

"""The longest context whose own plan fits: what users are told may be asked for. Pure.

A plan's `safe_max_model_len` is reckoned from the room that one start leaves. Asked for, that length may take a little
more of it (a longer step, a larger table of requests), or something else than the length may keep it from fitting. So
it is planned before it is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from exo_inference.planner.verdict import Plan, Verdict

_STEP = 1024
_MOST_STEPS = 3


def with_sure_length(found: Plan, again: Callable[[int], Plan]) -> Plan:
    """Return the plan with the longest context that fits when it is asked for, 0 for none.

    Args:
        found: what was planned.
        again: plans the same with another length.
    """
    return replace(found, safe_max_model_len=_sure_length(found, again))


def _sure_length(found: Plan, again: Callable[[int], Plan]) -> int:
    length = found.safe_max_model_len
    if found.verdict is Verdict.FITS and length == found.max_model_len:
        return length
    for _ in range(_MOST_STEPS):
        after = again(length) if length > 0 else found
        if length <= 0 or after.verdict is Verdict.FITS:
            return length
        if after.safe_max_model_len >= length:
            break
        length = after.safe_max_model_len

    def fits(steps: int) -> bool:
        return again(steps * _STEP).verdict is Verdict.FITS

    low, high = 1, length // _STEP + 1
    if high <= low or not fits(low):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * _STEP

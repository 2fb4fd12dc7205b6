"""What is wrong with a deployment, in the planner's words: found while settling, checking and sizing it."""

from __future__ import annotations

from dataclasses import dataclass

OF_PROCESSOR = "processor"
"""The code of an engine's refusal of this machine's processor: no flag, no GPU and no memory mends it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong or worth knowing.

    Attributes:
        code: stable, for programs (`memory`, `tensor-parallel`, `unknown-model`, …).
        refuses: whether the engine would not start because of it.
        says_step: whether `detail` ends with what to set instead, so that no other way out is needed.
        ways: flags that mend it, each of them alone, in the order in which `detail` has them: the names of parameters, and
            what they are to be.
    """

    code: str
    detail: str
    refuses: bool = True
    says_step: bool = False
    ways: tuple[tuple[str, str | int | bool], ...] = ()

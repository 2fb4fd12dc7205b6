"""Python's collector of garbage, kept away from what stays as long as its process.

A start imports and builds some hundred thousand objects, none of which is garbage. Looking through them again and
again makes importing PyTorch longer; later, whichever step a full collection falls on would be longer by that.
"""

from __future__ import annotations

import gc


def pause() -> None:
    """Collect nothing from here on: at the beginning of a process that imports much."""
    gc.disable()


def resume() -> None:
    """Collect again, but never look through what there is by now."""
    gc.freeze()
    gc.enable()

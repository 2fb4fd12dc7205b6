"""A file of constants that a script derives: written, or with --check compared with what is there."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_compare(target: Path, text: str, source: Path, *, check: bool) -> int:
    """Write the text to the file, or only say whether it is what the file has.

    Args:
        target: the file of constants.
        text: what was derived.
        source: what it was derived from, for the message.
        check: write nothing.

    Returns:
        The exit code: 1 where the file differs and nothing is written.
    """
    if not check:
        target.write_text(text, encoding="utf-8")
        return 0
    if text == target.read_text(encoding="utf-8"):
        return 0
    print(f"{target} is not what {source} gives: run `make planner-calibrate`", file=sys.stderr)
    return 1

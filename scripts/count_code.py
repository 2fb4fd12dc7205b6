"""Counts lines of Python code: no blank lines, no comments, no docstrings.

Run as `python -m scripts.count_code [FOLDER]`; without a folder it counts `exo_inference`, package by package.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_NO_CODE = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
)  # fmt: skip


def count_code(text: str) -> int:
    """Return how many lines of a module hold code; a text that stands alone is a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def main(arguments: list[str]) -> int:
    """Print the lines of each package, and of all."""
    root = Path(arguments[0] if arguments else "exo_inference")
    counts: Counter[str] = Counter()
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        counts[parts[0] if len(parts) > 1 else "."] += count_code(path.read_text(encoding="utf-8"))
    for name, count in sorted(counts.items()):
        print(f"{count:8,} {name}")
    print(f"{counts.total():8,} {root}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

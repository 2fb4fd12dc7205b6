"""Reads which releases of SGLang have a class for an architecture: the `EntryClass` of each file of srt/models.

Run as `python scripts/sglang_catalogue/read_classes.py tests/planner/vllm_classes.json 0.4.0=DIR 0.4.1=DIR … >
tests/planner/sglang_classes.json`, each DIR being the `sglang/` folder of that release's source distribution or wheel, of several
with one number the last (`.post4`). The architectures are those of the first file. Nothing is imported: the files are parsed.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path


def read_architectures(folder: Path) -> set[str]:
    """Return the names of the classes that one release serves."""
    trees = (
        ast.parse(path.read_text("utf-8-sig")) for path in (folder / "srt/models").rglob("*.py")
    )
    return {name for tree in trees for name in _entries(tree)}


def _entries(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(each, ast.Name) and each.id == "EntryClass" for each in targets):
            found |= {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
    return found


def main(arguments: list[str]) -> None:
    """Print the first release of each architecture that a release has."""
    named = json.loads(Path(arguments[0]).read_text("utf-8"))
    kinds = named["model_types"] | named["checkpoints"]
    folders = dict(each.split("=", 1) for each in arguments[1:])
    found = {release: read_architectures(Path(folder)) for release, folder in folders.items()}
    firsts = {
        name: next((release for release, names in found.items() if name in names), None)
        for name in sorted({name for names in kinds.values() for name in names})
    }
    source = "EntryClass in sglang/srt/models of the last release with each number on PyPI, read by scripts/sglang_catalogue/read_classes.py"
    held = {name: first for name, first in firsts.items() if first is not None}
    result = {"source": source, "releases": list(folders), "architectures": held}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])

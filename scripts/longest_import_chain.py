"""Prints the longest chain of modules that import each other, and how many they are.

Run as `python -m scripts.longest_import_chain [FOLDER]`; without a folder it reads `exo_inference`. What is imported
when a module is loaded counts: no imports within functions, and none for type checkers alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

Imports = Mapping[str, frozenset[str]]


def read_imports(folder: Path) -> Imports:
    """Return which module of a package imports which others of it while it is loaded.

    Args:
        folder: the package, by whose name modules import.
    """
    paths = {_name(path, folder.parent): path for path in folder.rglob("*.py")}
    return {
        name: frozenset(_imported(ast.parse(path.read_text("utf-8")).body, paths)) - {name}
        for name, path in paths.items()
    }


def _name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _imported(body: Iterable[ast.stmt], known: Mapping[str, Path]) -> Iterator[str]:
    for statement in _loaded(body):
        for alias in statement.names:
            if isinstance(statement, ast.Import):
                names = (alias.name,)
            else:
                names = (f"{statement.module}.{alias.name}", str(statement.module))
            yield from [name for name in names if name in known][:1]


def _loaded(body: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for statement in body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                yield statement
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from _loaded(statement.orelse)
            case ast.If():
                yield from _loaded([*statement.body, *statement.orelse])
            case ast.Try():
                handled = [each for handler in statement.handlers for each in handler.body]
                yield from _loaded([*statement.body, *handled, *statement.orelse])


def longest_chain(imports: Imports) -> list[str]:
    """Return modules of which each imports the next, as many as there are.

    Raises:
        graphlib.CycleError: modules import each other in a circle.
    """
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(imports).static_order():
        longest = max((chains[used] for used in sorted(imports[name])), key=len, default=[])
        chains[name] = [name, *longest]
    return max(chains.values(), key=len)


def main(arguments: list[str]) -> int:
    """Print the number of modules of the longest chain, and the chain."""
    imports = read_imports(Path(arguments[0] if arguments else "exo_inference"))
    chain = longest_chain(imports)
    print(f"{len(chain)} of {len(imports)} modules:", *chain, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

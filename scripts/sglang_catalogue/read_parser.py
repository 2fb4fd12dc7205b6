"""Reads the flags of SGLang's own parser from an unpacked release.

Run as `python scripts/sglang_catalogue/read_parser.py SGLANG_DIR RELEASE > tests/engines/sglang_parser.json`,
SGLANG_DIR being the `sglang/` folder of that release's wheel. Nothing is imported: the files are parsed.
Out comes one row for each flag that argparse is told of, in the words of our catalogues: spellings, type, default,
choices, `values` null where several follow. A test holds `exo_inference/engines/catalog/sglang.json` equal to it.
Descriptions, sections and names are the catalogue's own.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_PARSER = "srt/server_args.py"
_CHOICES = (
    "srt/utils/common.py",
    "srt/model_executor/cuda_graph_config.py",
    "srt/parser/reasoning_parser.py",
    "srt/function_call/function_call_parser.py",
    "kernels/ops/kv_canary/consts.py",
)
"""Files that lists of choices come from."""

_NUMBERS = {"int": "integer", "float": "float"}
_JSON_READERS = {"json.loads", "json_list_type", "parse_cuda_graph_config_arg"}
_WITHOUT_VALUE = {"'store_true'", "DeprecatedAction", "DeprecatedStoreTrueAction", "DeprecatedStoreConstAction"}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Print the rows of a release as JSON, one on each line."""
    folder, release = Path(arguments[0]), arguments[1]
    rows = [json.dumps(row, ensure_ascii=False) for row in read(folder)]
    head = json.dumps({"release": release, "source": f"sglang/{_PARSER} of the wheel on PyPI"})
    print(f'{head[:-1]},\n"flags": [\n' + ",\n".join(rows) + "\n]}")
    return 0


def read(folder: Path) -> Iterator[Row]:
    """Yield the row of each flag: those of the fields of `ServerArgs`, then those that are added by hand."""
    tree = ast.parse((folder / _PARSER).read_text("utf-8"))
    names = dict(_named(tree))
    for path in _CHOICES:
        names |= dict(_named(ast.parse((folder / path).read_text("utf-8"))))
    (args,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ServerArgs")
    for field in args.body:
        if isinstance(field, ast.AnnAssign) and (row := _of_field(field, names)) is not None:
            yield row
    (adder,) = (n for n in args.body if isinstance(n, ast.FunctionDef) and n.name == "add_cli_args")
    names |= {name.removeprefix("add_cli_args."): node for name, node in _assigned(adder, "")}
    for call in ast.walk(adder):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "parser.add_argument":
            yield _of_call(call, names)


def _named(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.ClassDef]]:
    """Yield what names at the top of a module stand for, those within classes after a dot."""
    yield from _assigned(tree, "")
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name, node
            yield from _assigned(node, f"{node.name}.")


def _assigned(node: ast.Module | ast.ClassDef | ast.FunctionDef, prefix: str) -> Iterator[tuple[str, ast.expr]]:  # fmt: skip
    for each in node.body:
        if isinstance(each, ast.Assign):
            yield f"{prefix}{ast.unparse(each.targets[0])}", each.value
        elif isinstance(each, ast.AnnAssign) and each.value is not None:
            yield f"{prefix}{ast.unparse(each.target)}", each.value


def _of_field(field: ast.AnnAssign, names: Mapping[str, Any]) -> Row | None:
    """Return the row of one field; None if it is no flag, or one that is added by hand."""
    if not isinstance(field.annotation, ast.Subscript) or not isinstance(field.annotation.slice, ast.Tuple):  # fmt: skip
        return None
    inner, *rest = field.annotation.slice.elts
    is_flag, said = False, {}
    for each in rest:
        named = ast.unparse(each.func) if isinstance(each, ast.Call) else ""
        is_flag |= named != "NS"
        if isinstance(each, ast.Call) and named == "Arg":
            said = {keyword.arg: keyword.value for keyword in each.keywords}
    if not is_flag or "no_cli" in said:
        return None
    assert isinstance(field.target, ast.Name)
    spelled = f"--{field.target.id.replace('_', '-')}"
    flags = [_value(said["cli_name"], names) if "cli_name" in said else spelled]
    flags += _value(said["aliases"], names) if "aliases" in said else []
    kind, choices, several = _kind(inner)
    if "choices" in said:
        choices = _value(said["choices"], names)
    if "type_parser" in said:
        reader = ast.unparse(said["type_parser"])
        kind, several = ("json" if reader in _JSON_READERS else "string"), False
    row: Row = {"flags": flags, "type": kind}
    if "action" in said:
        is_switch = ast.unparse(said["action"]) == "argparse.BooleanOptionalAction"
        row["flags"] = [*flags, f"--no-{flags[0][2:]}"] if is_switch else flags
        several = not is_switch
    if "type_parser" in said and ast.unparse(said["type_parser"]) == "human_readable_int":
        row |= {"type": "integer", "suffixed": True}
    row["default"] = "None" if field.value is None else _text(field.value, names)
    return _finish(row, choices, several=several)


def _kind(node: ast.expr) -> tuple[str, list[Any], bool]:
    """Return type, choices and whether several values follow, as SGLang concludes them from an annotation."""
    text = ast.unparse(node)
    if text.startswith("Optional[") and isinstance(node, ast.Subscript):
        return _kind(node.slice)
    if isinstance(node, ast.Subscript) and text.startswith("Literal["):
        listed = ast.literal_eval(node.slice)
        return "string", [each for each in (listed if isinstance(listed, tuple) else (listed,)) if each is not None], False  # fmt: skip
    if isinstance(node, ast.Subscript) and text.startswith("List["):
        return _NUMBERS.get(ast.unparse(node.slice), "string"), [], True
    is_several = text.startswith("Union[set[")  # `nargs` says so beside it
    return "boolean" if text == "bool" else _NUMBERS.get(text, "string"), [], is_several


def _of_call(call: ast.Call, names: Mapping[str, Any]) -> Row:
    """Return the row of a flag that is added by hand; those that are deprecated are."""
    said = {keyword.arg: keyword.value for keyword in call.keywords}
    row: Row = {"flags": [_value(each, names) for each in call.args]}
    if "action" in said and ast.unparse(said["action"]) in _WITHOUT_VALUE:
        return {**row, "type": "boolean", "default": "False"}
    row["type"] = _NUMBERS.get(ast.unparse(said["type"]), "string")
    is_given = "default" in said and ast.unparse(said["default"]) != "argparse.SUPPRESS"
    row["default"] = _text(said["default"], names) if is_given else "None"
    choices = _value(said["choices"], names) if "choices" in said else []
    return _finish(row, choices, several="nargs" in said)


def _finish(row: Row, choices: Any, *, several: bool) -> Row:
    if choices:
        row |= {"type": "enum", "allowed-values": [str(choice) for choice in choices]}
    if several:
        row["values"] = None
    return row


def _text(node: ast.expr, names: Mapping[str, Any]) -> str:
    if ast.unparse(node).startswith("dataclasses.field("):
        return "[]"
    return str(_value(node, names))


def _value(node: Any, names: Mapping[str, Any]) -> Any:
    """Return what an expression stands for: what lists of choices and defaults are made of."""
    text = ast.unparse(node) if isinstance(node, ast.AST) else ""
    if isinstance(node, ast.ClassDef):  # an enum: its members in lower case
        return [name.lower() for name, _ in _assigned(node, "")]
    if isinstance(node, ast.ListComp):
        return _value(node.generators[0].iter, names)
    if isinstance(node, ast.Call) and text.startswith("list("):
        return _value(node.args[0], names)
    if isinstance(node, ast.Call) and text.endswith(".keys()"):
        listed = names[text.removesuffix(".keys()")]
        return [ast.literal_eval(key) for key in listed.keys]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(each, names) for each in node.elts]
    if isinstance(node, ast.Set):
        return sorted(_value(each, names) for each in node.elts)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, names), _value(node.right, names)
        return left + right if isinstance(node.op, ast.Add) else left * right
    if isinstance(node, ast.Subscript):
        return _value(node.value, names)[_value(node.slice, names)]
    if text in names or f"Backend.{text}" in names:
        return _value(names.get(text, names.get(f"Backend.{text}")), names)
    return ast.literal_eval(node)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

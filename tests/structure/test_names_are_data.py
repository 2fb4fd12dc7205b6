"""No code asks for an engine or a model family by name: what sets one apart is a field of its row.

What is seen: a name that is written outside the tables, wherever it stands, and a constant with a name of a table's file that
is compared, matched or looked up. What is not: a name that is put together while the program runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

import pytest

import exo_inference
from exo_inference.engine_names import ENGINES, OWN_ENGINE
from exo_inference.planner.model.families import FAMILIES

PACKAGE = Path(exo_inference.__file__).parent

TABLES = {
    "engine_names.py": "the table itself: a row per engine",
    "planner/engine_rules.py": "the table of the engines' rules of memory",
    "planner/model/assumptions.py": "the table of classes of transformers that serve a type of another name",
    "planner/model/families.py": "the table of families",
    "planner/model/layers.py": "kinds of layers in config.json, of which some are called as families are",
    "planner/model/audio.py": "the table of audio encoders whose sizes no config names",
    "planner/model/vision.py": "the table of image encoders, by the model type of each",
    "planner/model/towers/counted.py": "the table of image encoders that are one number, by the model type of each",
    "planner/processor/exo_kernels.py": "the table of what exo-engine's kernels leave to PyTorch, by family",
    "planner/releases/classes.py": "the table of the releases that have a class for a family",
    "planner/releases/own_code.py": "the table of model types whose code comes with the model",
    "planner/releases/sglang.py": "the table of the releases of SGLang that have a class for a family",
    "planner/releases/dtypes.py": "the table of families that a release does not compute in float16",
    "planner/releases/sglang_families.py": "the table of what releases of SGLang do to families",
    "resources/deployment.py": "digests that are stored leave out what was the default when the first were written",
}
"""Where engines and families may be told apart by name, and why."""

PROGRAM = {
    "cli/deployment/flag_migration.py", "cli/errors/text.py", "cli/plan/command_line.py", "cli/root.py",
    "platforms/kubernetes/names.py",
}  # fmt: skip
"""Where `exo` is the program, or what its objects on a cluster begin with, and not the engine."""

_COMPARING = {
    "startswith", "endswith", "removeprefix", "removesuffix", "find", "rfind", "index", "rindex", "count", "partition", "split",
    "get", "pop", "setdefault", "eq", "ne", "contains", "countOf", "indexOf", "__eq__", "__ne__", "__contains__", "__getitem__",
    "match", "search", "fullmatch", "findall", "compile", "fnmatch", "fnmatchcase", "isdisjoint", "issubset", "issuperset",
    "intersection", "difference",
}  # fmt: skip
"""Functions and methods that compare their arguments or what they are called on."""


@cache
def trees() -> dict[str, ast.Module]:
    """Return the code of each file: not before a test wants it, as every process collects this module."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def named() -> dict[str, str]:
    """Return the names of engines and families that a constant stands for, by the constant's own."""
    known = _written_forms(frozenset({*ENGINES, *FAMILIES}))
    return {
        name: text
        for path in TABLES
        for name, text in _constants(trees()[path])
        if text in known and path != "resources/deployment.py"
    }


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the texts that have a name in a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            for target in _targets(node):
                if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                    yield target.id, node.value.value


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.NamedExpr) else []


@cache
def _written_forms(names: frozenset[str]) -> frozenset[str]:
    """Return names with those of the text models inside."""
    return names | {f"{name}_text" for name in names}


@cache
def _beginnings(names: frozenset[str]) -> frozenset[str]:
    """Return what names begin with before the first digit or hyphen: `qwen` of `qwen2_moe`."""
    return frozenset(re.split(r"[\d_-]", name)[0] for name in names) - {"t"}


def _folded(node: ast.AST) -> str | None:
    """Return the text of a constant, or of constants that are joined with a plus."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            first, second = _folded(left), _folded(right)
            return None if first is None or second is None else first + second
    return None


def _written(tree: ast.AST, names: frozenset[str]) -> set[str]:
    """Return the names that are written in code: alone, or in a text that holds nothing but names."""
    known, found = _written_forms(names), set()
    for node in ast.walk(tree):
        if (text := _folded(node)) is not None:
            words = set(re.split(r"[^\w.-]+", text.strip("^$()"))) - {""}
            is_plain = len(words) > 1 or text.strip("^$()") in words  # "exo/" is a part of a path
            found |= words if words <= known and is_plain else set()
        elif isinstance(node, ast.keyword) and node.arg in known:
            found.add(str(node.arg))
    return found


def _compared(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what code compares, matches and looks up, and the keys of its dictionaries."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare() | ast.MatchValue() | ast.MatchMapping():
                yield node
            case ast.BinOp(op=ast.BitAnd() | ast.Sub() | ast.BitXor()):
                yield node
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                if name in _COMPARING:
                    yield node
            case ast.Attribute(attr=name, value=value) if name in _COMPARING:
                yield value  # handed on: `map(OWN_ENGINE.__eq__, engines)`
            case ast.Subscript(slice=key):
                yield key
            case ast.Dict(keys=keys):
                yield from filter(None, keys)


def _begun(tree: ast.AST, names: frozenset[str]) -> set[str]:
    """Return the beginnings of names that code compares with."""
    if not names:
        return set()
    parts = {part for node in _compared(tree) for part in ast.walk(node)}
    texts = {
        part.value
        for part in parts
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    patterns = re.compile(r"\\\w|[^\w/-]")  # of regular expressions and wildcards
    words = {patterns.sub("", text).rstrip("_-") for text in texts}
    return words & (_beginnings(names) | names)


def _meant(tree: ast.AST) -> set[str]:
    """Return the names that code compares by a constant, also by a variable or default that is one."""
    aliases = dict(named())
    if not any(_stands_for(node, aliases) for node in ast.walk(tree)):
        return set()
    for _ in range(2):  # a set of constants, and a name of that set
        aliases |= {
            name: text for name, value in _bound(tree) if (text := _stands_for(value, aliases))
        }
    parts = {part for node in _compared(tree) for part in ast.walk(node)}
    found = {_stands_for(part, aliases) for part in parts}
    return {text for text in found if text is not None}


def _bound(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield variables and parameters with what they are bound to; fields of classes are handed on."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {id(each) for node in classes for each in node.body}
    for node in ast.walk(tree):
        if id(node) in fields and isinstance(node, ast.AnnAssign):
            continue
        match node:
            case ast.Assign(value=value) | ast.AnnAssign(value=value) | ast.NamedExpr(value=value):
                for target in _targets(node):
                    if isinstance(target, ast.Name) and value is not None:
                        yield target.id, value
            case ast.For(target=ast.Name(id=name), iter=value):
                yield name, value
            case ast.comprehension(target=ast.Name(id=name), iter=value):
                yield name, value
            case ast.arguments():
                named_ones = [*node.posonlyargs, *node.args]
                pairs = zip(reversed(named_ones), reversed(node.defaults), strict=False)
                for each, default in [*pairs, *zip(node.kwonlyargs, node.kw_defaults, strict=True)]:
                    if default is not None:
                        yield each.arg, default


def _stands_for(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """Return the name that an expression is, or that is in a container which it makes."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return aliases.get(name)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return next(filter(None, (_stands_for(each, aliases) for each in parts)), None)
        case ast.Call(func=ast.Name(id="frozenset" | "set" | "tuple" | "list"), args=[inside]):
            return _stands_for(inside, aliases)
    return None


def told_apart(tree: ast.AST, names: Set[str]) -> set[str]:
    """Return the names, of those given, by which code tells engines or families apart."""
    wanted = frozenset(names)
    meant = {text for text in _meant(tree) if text in _written_forms(wanted)}
    return _written(tree, wanted) | _begun(tree, wanted - set(ENGINES)) | meant


@pytest.mark.parametrize(
    "code",
    [
        'a == "vllm"', 'b.engine in ("exo", "sglang")', '{"tgi": 1}', 'TITLES["llama-cpp"]', 'x.get("vllm")',
        'match a:\n case "exo": pass', 'name.startswith("tensorrt-llm")', 'operator.eq(a, "vllm")', 'name.find("tgi")',
        'NAMES = {"vllm"}\na in NAMES', 'wanted = "vllm"\na == wanted', 'def f(a, b="vllm"): return a == b',
        're.match("vllm|tgi", a)', '"vllm sglang".split()', '"sg" + "lang"', "dict(vllm=1)", 'f(**{"sglang": 1})',
        'lambda a: 1 if a == "vllm" else 2', 'f"{a}" in ["tgi"]',
    ],
)  # fmt: skip
def test_every_way_to_write_the_name_of_an_engine_is_seen(code: str) -> None:
    assert told_apart(ast.parse(code), set(ENGINES))


@pytest.mark.parametrize(
    "code",
    [
        "a == OWN_ENGINE", "engine_names.OWN_ENGINE != a", "a in (GPU_ENGINE, OWN_ENGINE)", "operator.eq(a, OWN_ENGINE)",
        "match a:\n case engine_names.GPU_ENGINE: pass", "TITLES[OWN_ENGINE]", "{GPU_ENGINE: 1}", "a.startswith(OWN_ENGINE)",
        "own = OWN_ENGINE\na == own", "_SET = frozenset({OWN_ENGINE})\na in _SET", "def f(a, own=OWN_ENGINE): return a == own",
        "def f(a, *, own=OWN_ENGINE): return a == own", "(own := OWN_ENGINE)\na == own", "any(map(OWN_ENGINE.__eq__, a))",
        "{a} & {OWN_ENGINE}", "_SET = {OWN_ENGINE}\nB = _SET\na in B", "for own in [OWN_ENGINE]:\n a == own",
        "re.fullmatch(OWN_ENGINE, a)", 're.match("^vllm$", a)', "[a == own for own in (OWN_ENGINE,)]",
    ],
)  # fmt: skip
def test_every_way_to_compare_with_the_constant_of_an_engine_is_seen(code: str) -> None:
    assert told_apart(ast.parse(code), set(ENGINES))


@pytest.mark.parametrize(
    "code",
    [
        '_SET = frozenset({"gpt_oss"})\nkind in _SET', 'FIELD: set[str] = {"llama4"}', "x = field(default='mixtral')",
        'def f(kind="qwen2"): ...', 'Rules(windowed=frozenset({"gemma3"}))', 'model_type in ["glm4_moe", a]',
        'kind == "qwen3_5_text"', 'kind.startswith("qwen2")', 'kind.startswith("qwen")', '"gemma" in kind',
        're.match(r"^llama\\d", kind)', 'kind.removeprefix("deepseek_") == "v3"', 'LENGTHS = {1024: "gpt2 gpt_bigcode"}',
        'operator.contains(kind, "mistral")', 'kind.find("phi3")', 'kind.startswith("gemma4_")', 'fnmatch(kind, "qwen*")', 'kind[:4] == "qwen"', '"lla" + "ma" == kind',
        'case = lambda kind: 2 if kind == "mamba" else 1', 'Literal["falcon"]', 'dict(bloom=3)[kind]',
    ],
)  # fmt: skip
def test_every_way_to_write_the_name_of_a_family_is_seen(code: str) -> None:
    assert told_apart(ast.parse(code), FAMILIES.keys())


@pytest.mark.parametrize(
    "code",
    [
        "engine = asked or GPU_ENGINE", "get_engine(OWN_ENGINE)", "class A:\n engine: str = OWN_ENGINE",
        "sorted({OWN_ENGINE, *engines})", "facts_of(engine).is_ours", "kind in rules.classes", 'text = "a new falcon"',
        'raise E("vLLM and sglang differ")', 'method == "gptq"', 'kind == other', 'name.startswith("exo/")', 'rope == "llama3"',
    ],
)  # fmt: skip
def test_a_name_that_is_handed_on_and_words_of_a_message_are_not_meant(code: str) -> None:
    assert told_apart(ast.parse(code), {*ENGINES, *FAMILIES}) == set()


def test_no_code_asks_for_an_engine_or_a_family_by_name() -> None:
    """Families in the planner alone: elsewhere quantization methods and fields are called the same."""
    found = {}
    for path, tree in trees().items():
        families = FAMILIES.keys() if path.startswith("planner/") else set()
        engines = set() if path.startswith("engines/") else set(ENGINES)
        names = told_apart(tree, engines | families)
        if names := names - ({OWN_ENGINE} if path in PROGRAM else set()):
            found[path] = names
    assert {path: names for path, names in found.items() if path not in TABLES} == {}
    assert TABLES.keys() == found.keys(), "a file that names none any more is not listed"


@pytest.mark.parametrize("code", ["lambda a: a == 'llama'", "f(1 if a in {'llama'} else 2)"])
def test_a_comparison_within_a_table_is_seen(code: str) -> None:
    assert _asked(ast.parse(code))


def test_tables_are_data() -> None:
    """A lambda around a comparison is code: a table says of each name what it is, and does not ask."""
    found = {path: names for path in TABLES if (names := _asked(trees()[path]))}
    assert found == {}


def _asked(tree: ast.AST) -> set[str]:
    """Return the names that are compared where they stand, other than as keys."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.MatchValue)]
    known = frozenset({*ENGINES, *FAMILIES})
    return {name for node in nodes for name in _written(node, known)}


def test_files_that_name_the_program_do() -> None:
    assert {path for path in PROGRAM if OWN_ENGINE in told_apart(trees()[path], set(ENGINES))} == PROGRAM  # fmt: skip

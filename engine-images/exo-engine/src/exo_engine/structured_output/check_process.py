"""The process that tries grammars out: `python -P -m exo_engine.structured_output.check_process`.

A schema can make its compiler take any time and any memory. What that costs, it costs this process
alone, which the kernel ends; the engine's core gets grammars that have passed here. Takes requests on
stdin and answers on stdout until stdin ends; `server/pools/grammar_pool.py` is the other side.
"""

from __future__ import annotations

import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from exo_engine.errors import EngineError, RequestError
from exo_engine.foreign_files import shown
from exo_engine.structured_output import grammars, schema_check
from exo_engine.structured_output.compiler import Compiler, import_llguidance
from exo_engine.structured_output.vocabulary import vocabulary_of
from exo_engine.tokenizer import Tokenizer
from exo_engine.tokenizer.confined import allow_processor_time, confine, pack, read

MAX_SECONDS = 1.5
"""Of the processor, for one grammar."""
MAX_BYTES = 200 * 2**20
"""Of memory, for one grammar and those that are kept, beside what the process takes anyway."""
_LOADING_BYTES = 4 * 2**30
_LOADING_SECONDS = 30
_SEARCH_SECONDS = 0.4
_TOO_LONG = 1500
"""Characters of a compiler's own words."""


def main() -> int:
    """Answer requests until there are no more."""
    answers = confine(_LOADING_BYTES)
    compiler: Compiler | None = None
    while (frame := read(sys.stdin.buffer)) is not None:
        request, body = frame
        document: dict[str, Any] = {}
        try:
            if compiler is None:
                allow_processor_time(_LOADING_SECONDS)
                compiler = _load(request)
                allow_processor_time(2**31)
                _limit_memory()
            else:
                signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
                document = _check(compiler, body.decode(), request)
        except (EngineError, MemoryError) as exc:
            message = exc.message if isinstance(exc, EngineError) else "it takes too much memory"
            document = {"error": message}
        except BaseException as exc:  # the library's panics are no Exception
            document = {"error": f"its compiler broke on it ({shown(exc)})"}
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        answers.write(pack(document))
        answers.flush()
    return 0


def _load(request: dict[str, Any]) -> Compiler:
    """Read the tokenizer, and build what grammars share."""
    directory, model_dir = Path(request["tokenizer_dir"]), request["model_dir"]
    tokenizer = Tokenizer(directory, model_dir=model_dir and Path(model_dir))
    compiler = Compiler(request["vocabulary_size"], max_entries=1)
    compiler.use(vocabulary_of(tokenizer, request["vocabulary_size"]))
    compiler.matcher(grammars.grammar(grammars.json_rule({"type": "object"})))
    return compiler


def _limit_memory() -> None:
    """Let the process grow no further than by what one grammar may take."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES, used + MAX_BYTES))


def _check(compiler: Compiler, text: str, request: dict[str, Any]) -> dict[str, Any]:
    """Compile a grammar, of a user's own form or ready; return it, or what is wrong and where."""
    if request["is_foreign"]:
        text = _converted(text)
    try:
        compiler.matcher(text)
    except RequestError as exc:
        found = {"error": _plain(exc.message)}
        if request["schema"] is not None:
            found["pointer"] = _place(compiler, request["schema"])
        return found
    return {"grammar": text}


def _converted(text: str) -> str:
    """Return a user's grammar, in Lark's form or in that of llama.cpp, as Lark with our options."""
    import_llguidance()
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        converted: str = any_to_lark(text)
    except Exception as exc:
        raise RequestError(f"it is no grammar: {shown(exc)}") from exc
    return grammars.with_options(converted)


def _plain(message: str) -> str:
    """Return the compiler's words without where in our text it met the schema."""
    _, mark, rest = message.partition("failed to compile JSON schema: ")
    if not mark:
        return shown(message, _TOO_LONG)
    return shown(
        rest.split("\n   ")[0] if "\n 1 |" not in rest else rest.split("\n 1 |")[0], _TOO_LONG
    )


def _place(compiler: Compiler, schema: Any) -> str:
    """Return a pointer to the smallest part of a schema that cannot be compiled by itself."""
    until = time.process_time() + _SEARCH_SECONDS
    root = {"$defs": {"root": _moved(schema)}}
    parts = [
        (pointer, depth)
        for pointer, depth, value in schema_check.walk(schema)
        if isinstance(value, dict)
    ]
    for pointer, _ in sorted(parts, key=lambda each: -each[1]):
        if time.process_time() > until:
            break
        part = {**root, "$ref": f"#/$defs/root{pointer}"}
        if _is_schema_place(pointer) and not _compiles(compiler, part):
            return pointer
    return ""


def _is_schema_place(pointer: str) -> bool:
    """Whether a part of a schema is one itself, and no table of them."""
    names = pointer.split("/")
    return names[-1] not in schema_check.TABLES or (
        len(names) > 1 and names[-2] in schema_check.TABLES
    )


def _compiles(compiler: Compiler, schema: Any) -> bool:
    try:
        compiler.matcher(grammars.grammar(grammars.json_rule(schema)))
    except RequestError:
        return False
    return True


def _moved(value: Any) -> Any:
    """Return a schema whose references are right one level below a new root."""
    if isinstance(value, dict):
        return {
            name: f"#/$defs/root{part[1:]}"
            if name == "$ref" and isinstance(part, str) and part.startswith("#")
            else _moved(part)
            for name, part in value.items()
        }
    return [_moved(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())

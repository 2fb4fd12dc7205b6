"""The process in which a model's tokenizer encodes: `python -P -m exo_engine.tokenizer.tokenizer_process`.

A tokenizer.json holds programs of a stranger: patterns that take exponential time, replacements that
double a text forty times, tables that make the library panic. What they cost, they cost this process
alone, which the kernel ends. Takes requests on stdin and answers on stdout until stdin ends;
`server/pools/tokenizer_pool.py` is the other side.
"""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from typing import Any

from exo_engine.errors import EngineError, ModelUnusable
from exo_engine.foreign_files import shown
from exo_engine.tokenizer.confined import allow_processor_time, confine, pack, read
from exo_engine.tokenizer.tokenizer import Tokenizer

MAX_MEMORY_BYTES = 3 * 2**30
"""Of addresses. The largest tokenizers in use take 1 GiB while they are read."""
MAX_LOAD_SECONDS = 20
"""Of the processor, to read the files; the largest in use take three."""
MAX_ANSWER_TOKENS = 16_000_000
_MAX_SECONDS = 5
"""Of the processor, for a request; and again for each 1,000,000 bytes of text, which take one second."""
_BYTES_PER_SHARE = 1_000_000


def max_processor_seconds(num_bytes: int) -> int:
    """Return what the kernel lets a request with so much text take."""
    return _MAX_SECONDS * (1 + num_bytes // _BYTES_PER_SHARE)


def main() -> int:
    """Answer requests until there are no more."""
    answers = confine(MAX_MEMORY_BYTES)
    tokenizer: Tokenizer | None = None
    while (frame := read(sys.stdin.buffer)) is not None:
        request, texts = frame
        body = b""
        try:
            if tokenizer is None:
                allow_processor_time(MAX_LOAD_SECONDS)
                tokenizer = _load(request)
                document: dict[str, Any] = {"fingerprint": tokenizer.fingerprint}
            else:
                allow_processor_time(max_processor_seconds(len(texts)))
                document, body = _encode(tokenizer, request, texts)
        except EngineError as exc:
            document = {"error": exc.message, "hint": exc.hint}
        except BaseException as exc:  # the library's panics are no Exception
            document = {"error": f"its reader broke on it ({shown(exc)})"}
        answers.write(pack(document, body))
        answers.flush()
    return 0


def _load(request: dict[str, Any]) -> Tokenizer:
    """Read the files.

    Raises:
        ModelUnusable: they are of no use, or others than those that the server began with.
    """
    directory, model_dir = Path(request["tokenizer_dir"]), request["model_dir"]
    tokenizer = Tokenizer(directory, model_dir=model_dir and Path(model_dir))
    if request["fingerprint"] not in ("", tokenizer.fingerprint):
        raise ModelUnusable(
            f"{directory / 'tokenizer.json'} has changed since the engine started",
            hint="Start the engine again.",
        )
    return tokenizer


def _encode(
    tokenizer: Tokenizer, request: dict[str, Any], data: bytes
) -> tuple[dict[str, Any], bytes]:
    """Tokenize texts that lie one behind the other; return how many tokens each has, and all tokens."""
    texts, begin = [], 0
    for length in request["lengths"]:
        texts.append(data[begin : begin + length].decode())
        begin += length
    found = tokenizer.encode_all(texts, add_special_tokens=request["add_special_tokens"])
    counts = [len(each) for each in found]
    if sum(counts) > MAX_ANSWER_TOKENS:
        return {"error": f"it makes {sum(counts)} tokens of the text"}, b""
    return {"counts": counts}, b"".join(array("I", each).tobytes() for each in found)


if __name__ == "__main__":
    sys.exit(main())

"""The process in which a model's chat template runs: `python -P -m exo_engine.tokenizer.template_process`.

A template is foreign code. The sandbox that it runs in bounds what can be bounded from inside; whatever
gets past it (a filter of Jinja that takes minutes for one text) costs this process alone, which the
kernel ends. Takes requests on stdin and answers on stdout until stdin ends; `server/pools/template_pool.py`
is the other side.
"""

from __future__ import annotations

import sys
from typing import Any

from exo_engine.errors import EngineError
from exo_engine.tokenizer.chat_template import ChatTemplate
from exo_engine.tokenizer.confined import allow_processor_time, confine, pack
from exo_engine.tokenizer.confined import read as _read
from exo_engine.tokenizer.template_sources import MAX_PROCESSOR_SECONDS, TemplateCostly

MAX_MEMORY_BYTES = 2**30


def main() -> int:
    """Answer requests until there are no more."""
    answers = confine(MAX_MEMORY_BYTES)
    template: ChatTemplate | None = None
    while (frame := _read(sys.stdin.buffer)) is not None:
        request, _ = frame
        allow_processor_time(MAX_PROCESSOR_SECONDS)
        try:
            text = ""
            if template is None:
                template = ChatTemplate(**request)
            else:
                text = template.render(**request)
            document: dict[str, Any] = {}
        except EngineError as exc:
            document = {"error": exc.message, "is_costly": isinstance(exc, TemplateCostly)}
        except Exception as exc:
            document = {"error": f"its reader broke on it ({type(exc).__name__})"}
        answers.write(pack(document, text.encode("utf-8", "surrogatepass")))
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

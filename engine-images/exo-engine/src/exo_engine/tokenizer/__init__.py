"""Text to tokens and back: tokenizer.json, chat templates, streaming detokenization, stop strings.

Used by the HTTP side only; the engine core sees token ids. Imports no torch and no transformers, and
Jinja only for who asks for templates.
"""

from typing import TYPE_CHECKING, Any

from exo_engine.tokenizer.detokenizer import Detokenizer
from exo_engine.tokenizer.stop_strings import StopMatch, StopStrings
from exo_engine.tokenizer.template_sources import TemplateRefused
from exo_engine.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from exo_engine.tokenizer.chat_template import ChatTemplate

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "StopMatch",
    "StopStrings",
    "TemplateRefused",
    "Tokenizer",
]


def __getattr__(name: str) -> Any:
    if name != "ChatTemplate":
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    from exo_engine.tokenizer.chat_template import ChatTemplate

    return ChatTemplate

"""Text to tokens and back: tokenizer.json, chat templates, streaming detokenization, stop strings.

Used by the HTTP side only; the engine core sees token ids. Imports no torch and no transformers.
"""

from exo_engine.tokenizer.chat_template import ChatTemplate, TemplateRefused
from exo_engine.tokenizer.detokenizer import Detokenizer
from exo_engine.tokenizer.stop_strings import StopMatch, StopStrings
from exo_engine.tokenizer.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "StopMatch",
    "StopStrings",
    "TemplateRefused",
    "Tokenizer",
]

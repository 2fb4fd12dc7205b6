"""Compiles grammars with llguidance and keeps what was compiled, within bounds.

One `Compiler` per process that computes masks, and one in the process that tries grammars out first
(`check_process`). Its work holds no interpreter lock, and happens in a thread of its own where
`prepare` is asked. llguidance is optional: without it grammars are refused by name.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from exo_engine.errors import InvalidSamplingParams
from exo_engine.structured_output.vocabulary import Vocabulary

if TYPE_CHECKING:
    import llguidance

PARAM = "structured_outputs"
_MAX_ENTRIES = 256
_MAX_BYTES = 256 * 2**20
_LEAST_BYTES = 2**14
_LIMITS = {
    "max_lexer_states": 40_000,  # of up to 2 kB each
    "step_max_items": 50_000,  # 3 ms
    "step_lexer_fuel": 200_000,  # 15 ms
    "verbose_errors": False,  # they would quote the grammar and the answer
}
"""What one grammar may take, when it is compiled and at each token."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def import_llguidance() -> Any:
    """Return the package.

    Raises:
        InvalidSamplingParams: it is not installed.
    """
    try:
        import llguidance
    except ImportError as exc:
        raise InvalidSamplingParams(
            "answers that keep to a schema, an expression or a grammar need the package llguidance, "
            "which is not installed beside this engine",
            param=PARAM,
            hint="Install it with `pip install llguidance`, and start the engine again.",
        ) from exc
    return llguidance


class Compiler:
    """Grammars over one vocabulary.

    Args:
        vocabulary_size: token ids of the model are below.
        max_entries: most grammars to keep.
    """

    def __init__(self, vocabulary_size: int, *, max_entries: int = _MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._vocabulary_size = vocabulary_size
        self._vocabulary: Vocabulary | None = None
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._kept: OrderedDict[str, tuple[llguidance.LLMatcher, int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = Lock()
        self._loading = Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")

    @property
    def num_words(self) -> int:
        """32-bit words of a mask. One token more than the model's ends answers where it has none."""
        return self._vocabulary_size // 32 + 1

    def use(self, vocabulary: Vocabulary) -> None:
        """Take the tokens; before the first grammar."""
        self._vocabulary = vocabulary

    def prepare(self, grammar: str) -> Future[None]:
        """Compile a grammar in a thread; the future fails as `matcher` does."""
        return self._thread.submit(lambda: (self.matcher(grammar), None)[1])

    def matcher(self, grammar: str) -> llguidance.LLMatcher:
        """Return a matcher at the begin of a grammar, compiled now unless it is kept.

        Raises:
            InvalidSamplingParams: the grammar cannot be compiled, or takes too much.
        """
        with self._lock:
            kept = self._kept.get(grammar)
            if kept is not None:
                self._kept.move_to_end(grammar)
                return kept[0].deep_copy()
        matcher, num_bytes = self._compile(grammar)  # meanwhile others may have what is kept
        with self._lock:
            self._keep(grammar, matcher, num_bytes)
            return matcher.deep_copy()

    def _compile(self, grammar: str) -> tuple[llguidance.LLMatcher, int]:
        package = import_llguidance()
        tokenizer = self._get_tokenizer(package)
        before = _resident_bytes()
        limits = package.LLParserLimits(**_LIMITS)
        matcher = package.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # what the first token needs is built here, and shared
        if matcher.is_error():
            raise InvalidSamplingParams(_reason(matcher.get_error()), param=PARAM)
        grown = _resident_bytes() - before
        return matcher, max(_LEAST_BYTES, len(grammar), grown)

    def _get_tokenizer(self, package: Any) -> llguidance.LLTokenizer:
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = _make_tokenizer(package, self._vocabulary, self._vocabulary_size)
            return self._tokenizer

    def _keep(self, grammar: str, matcher: llguidance.LLMatcher, num_bytes: int) -> None:
        _, replaced = self._kept.pop(grammar, (None, 0))
        self._kept[grammar] = (matcher, num_bytes)
        self._num_bytes += num_bytes - replaced
        while len(self._kept) > 1 and (
            len(self._kept) > self._max_entries or self._num_bytes > _MAX_BYTES
        ):
            _, (_, given_back) = self._kept.popitem(last=False)
            self._num_bytes -= given_back


class _Tokens:
    """A vocabulary in the form that `LLTokenizer` reads."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, size: int) -> None:
        end_ids = vocabulary.end_ids or (size,)
        special = {*vocabulary.special_ids, *end_ids, size}
        # Tokens that are written alike are one to the library, so special ones need a name.
        self.tokens = [
            each or (f"<token {token_id}>".encode() if token_id in special else b"")
            for token_id, each in enumerate((*vocabulary.tokens, b""))
        ]
        self.special_token_ids = sorted(special)
        self.eos_token_id = end_ids[0]

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokenize nothing: grammars say `no_forcing`, so nobody asks in earnest."""
        return []


def _make_tokenizer(
    package: Any, vocabulary: Vocabulary | None, size: int
) -> llguidance.LLTokenizer:
    if vocabulary is None:
        raise InvalidSamplingParams("nobody has told the engine what its tokens say", param=PARAM)
    from llguidance._tokenizer import TokenizerWrapper

    wrapper = TokenizerWrapper(_Tokens(vocabulary, size))
    tokenizer: llguidance.LLTokenizer = package.LLTokenizer(
        wrapper, eos_token=list(vocabulary.end_ids or (size,))
    )
    return tokenizer


def _reason(error: str) -> str:
    """Return the library's words, or clearer ones for its code of a grammar without any text."""
    return "no text can match it" if error.startswith("NoExtension") else error.strip()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES

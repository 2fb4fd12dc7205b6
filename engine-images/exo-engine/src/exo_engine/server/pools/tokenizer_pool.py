"""Tokenizes in processes of their own: what a stranger's tokenizer does to a text costs that text alone.

The process here reads the same files for what only looks tokens up; it does so after a process of the
pool has, within limits. `Service` has no pool for a tokenizer that comes with this project.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from pathlib import Path

from exo_engine.errors import EngineError, ModelUnusable
from exo_engine.foreign_files import shown
from exo_engine.server.pools.process_pool import Allowance, Ended, NotStarted, ProcessPool
from exo_engine.tokenizer import Tokenizer
from exo_engine.tokenizer.confined import pack
from exo_engine.tokenizer.tokenizer_process import MAX_LOAD_SECONDS, max_processor_seconds

_MODULE = "exo_engine.tokenizer.tokenizer_process"
_WALL_SECONDS_EACH = 6.0
"""Of the wall clock for each of the processor, for a machine that is busy."""
_ENDED = "the process that does it ended; it may take more memory than there is"
_MANY_TOKENS = 100_000


class TextRefused(EngineError):
    """The model's tokenizer breaks on a text, or takes too much for it."""


class TokenizerPool:
    """A model's tokenizer, in processes of its own.

    Args:
        tokenizer_dir: where tokenizer.json lies.
        model_dir: where config.json lies, if elsewhere.
    """

    def __init__(self, tokenizer_dir: Path, *, model_dir: Path | None = None) -> None:
        self._recipe = {
            "tokenizer_dir": str(tokenizer_dir),
            "model_dir": None if model_dir is None else str(model_dir),
            "fingerprint": "",
        }
        self._path = tokenizer_dir / "tokenizer.json"
        self.pool = ProcessPool(
            _MODULE,
            self._recipe,
            loading=Allowance(MAX_LOAD_SECONDS, _WALL_SECONDS_EACH * MAX_LOAD_SECONDS),
            ended=_ENDED,
            environment={"TOKENIZERS_PARALLELISM": "false"},  # threads would share its time
        )

    async def open(self) -> None:
        """Start the first process and read the files there.

        Raises:
            ModelUnusable: they cannot be used, or take too much memory or time.
        """
        try:
            loaded = await self.pool.open()
        except NotStarted as exc:
            if exc.document:
                raise ModelUnusable(str(exc), hint=_shown_hint(exc.document.get("hint"))) from exc
            raise ModelUnusable(
                f"cannot load the tokenizer {self._path}: {exc}",
                hint="Choose another model, or start again if the machine is short of memory.",
            ) from exc
        self._recipe["fingerprint"] = str(loaded["fingerprint"])

    def check(self, tokenizer: Tokenizer) -> None:
        """Hold a tokenizer that was read after this pool was opened against what was read then.

        Raises:
            ModelUnusable: it is another one.
        """
        if tokenizer.fingerprint != self._recipe["fingerprint"]:
            raise ModelUnusable(
                f"{self._path} changed while it was read", hint="Start the engine again."
            )

    async def encode_all(
        self, texts: Sequence[str], *, add_special_tokens: bool
    ) -> list[list[int]]:
        """Return the token ids of each text.

        Raises:
            TextRefused: the tokenizer breaks on one of them, or takes too much.
            NoProcess: nothing can tokenize them now.
        """
        parts = [text.encode() for text in texts]
        data = b"".join(parts)
        request = {
            "lengths": [len(each) for each in parts],
            "add_special_tokens": add_special_tokens,
        }
        seconds = max_processor_seconds(len(data))
        allowed = Allowance(seconds, _WALL_SECONDS_EACH * seconds)
        try:
            document, body = await self.pool.ask(pack(request, data), allowed)
        except Ended as exc:
            raise TextRefused(f"the model's tokenizer cannot take this text: {exc}") from exc
        if "error" in document:
            reason = shown(str(document["error"]), 1000)
            raise TextRefused(f"the model's tokenizer cannot take this text: {reason}")
        if len(body) > _MANY_TOKENS * array("I").itemsize:
            return await asyncio.to_thread(_split, body, document["counts"])
        return _split(body, document["counts"])

    async def close(self) -> None:
        """End all processes."""
        await self.pool.close()


def _split(body: bytes, counts: Sequence[int]) -> list[list[int]]:
    tokens = array("I", body)
    found, begin = [], 0
    for count in counts:
        found.append(tokens[begin : begin + count].tolist())
        begin += count
    return found


def _shown_hint(hint: object) -> str | None:
    return None if hint is None else shown(str(hint))

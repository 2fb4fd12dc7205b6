"""Tries grammars out in processes of their own, so that a hostile schema costs its own request alone.

What passed is remembered, and what did not as well, within a bound. The engine's core gets only what passed.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exo_engine.errors import ConfigurationError
from exo_engine.foreign_files import shown
from exo_engine.server.api_errors import ApiError, bad_request
from exo_engine.server.constraints import Constraint
from exo_engine.server.pools.process_pool import Allowance, Ended, NotStarted, ProcessPool
from exo_engine.structured_output.check_process import MAX_SECONDS
from exo_engine.tokenizer.confined import pack

_MODULE = "exo_engine.structured_output.check_process"
_LOADING = Allowance(30, 120.0)
_ALLOWED = Allowance(2, 20.0)
_ENDED = f"it takes more than {MAX_SECONDS:g} seconds of processor time, or more memory than it may"
_MAX_VERDICTS = 4096

Verdict = dict[str, Any]


class GrammarPool:
    """A compiler of grammars, in processes of its own, started with the first grammar.

    Args:
        tokenizer_dir: where tokenizer.json lies.
        model_dir: where config.json lies.
        vocabulary_size: token ids of the model are below.
        observe: told how long each grammar took that was not known.
    """

    def __init__(
        self,
        tokenizer_dir: Path,
        model_dir: Path,
        vocabulary_size: int,
        observe: Callable[[float], None],
    ) -> None:
        recipe = {
            "tokenizer_dir": str(tokenizer_dir),
            "model_dir": str(model_dir),
            "vocabulary_size": vocabulary_size,
        }
        self.pool = ProcessPool(
            _MODULE,
            recipe,
            loading=_LOADING,
            ended=_ENDED,
            environment={"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._observe = observe
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()

    async def check(self, constraint: Constraint) -> str:
        """Return a constraint's grammar as the engine's core takes it.

        Raises:
            ApiError: 400 if it cannot be compiled, with the place in a schema where there is one.
        """
        key = hashlib.sha256(f"{constraint.is_foreign}{constraint.grammar}".encode()).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            begun = time.monotonic()
            verdict = await self._ask(constraint)
            self._observe(time.monotonic() - begun)
            if verdict.get("grammar") == constraint.grammar:
                verdict = {}  # it need not be held twice
            self._verdicts[key] = verdict
            if len(self._verdicts) > _MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        self._verdicts.move_to_end(key)
        if "error" in verdict:
            raise _refused(constraint, verdict)
        return str(verdict.get("grammar", constraint.grammar))

    async def _ask(self, constraint: Constraint) -> Verdict:
        request = {"is_foreign": constraint.is_foreign, "schema": constraint.schema}
        try:
            document, _ = await self.pool.ask(
                pack(request, constraint.grammar.encode(errors="replace")), _ALLOWED
            )
        except NotStarted as exc:
            raise ConfigurationError(f"cannot start the compiler of grammars: {exc}") from exc
        except Ended as exc:
            # Nobody knows which part it was at; all of it together is too much.
            return {"error": str(exc)} | ({} if constraint.schema is None else {"pointer": ""})
        return document

    async def close(self) -> None:
        """End all processes."""
        await self.pool.close()


def _refused(constraint: Constraint, verdict: Verdict) -> ApiError:
    message = shown(str(verdict["error"]), 2000)
    pointer = verdict.get("pointer")
    place = "" if pointer is None else f" (at {shown(str(pointer), 300) or 'the top'})"
    return bad_request(
        f"{constraint.param} cannot be kept to: {message}{place}",
        constraint.param,
        "invalid_schema",
    )

"""Renders conversations in processes of their own, so that a slow template stops nobody else's answers.

One process serves a model whose template is quick. While one takes long, others are started, four at
most; a rendering over its limits ends its process, and that request alone is refused. The event loop
only writes and reads pipes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from exo_engine.errors import ConfigurationError
from exo_engine.foreign_files import shown
from exo_engine.tokenizer.chat_template import Message, TemplateCostly, TemplateRefused
from exo_engine.tokenizer.template_process import (
    MAX_PROCESSOR_SECONDS,
    MAX_TEXT_BYTES,
    PREFIX,
    pack,
)

MAX_PROCESSES = 4
_DEADLINE_SECONDS = 30.0
"""Of the wall clock, for a machine that is busy; the processor's time ends a rendering sooner."""
_PATIENCE_SECONDS = 0.25
"""How long a request waits for a process before it starts another."""
_MODULE = "exo_engine.tokenizer.template_process"
_SMALL_MESSAGES = 100
_KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TZ")
"""Of the environment; keys and tokens in it are nothing for a template."""
_ENDED = "the process that renders it ended; it may take more memory than there is"


class _Ended(Exception):
    """A process ended, or did not answer in time.

    Args:
        reason: in words.
        may_be_innocent: it ended before the request came, or was killed; another may answer.
    """

    def __init__(self, reason: str, *, may_be_innocent: bool = False) -> None:
        super().__init__(reason)
        self.may_be_innocent = may_be_innocent


class TemplatePool:
    """A chat template, compiled in processes of its own."""

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str],
        content_format: str = "auto",
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare; nothing is started yet. See `ChatTemplate` for the arguments."""
        self._recipe = {
            "sources": dict(sources),
            "special_tokens": dict(special_tokens),
            "content_format": content_format,
            "variables": dict(variables or {}),
        }
        self._idle: asyncio.Queue[_Process] = asyncio.Queue()
        self._processes: set[_Process] = set()
        self._num_reserved = 0
        self._running: set[asyncio.Task[str]] = set()

    @property
    def num_processes(self) -> int:
        """How many processes there are, or will be in a moment."""
        return self._num_reserved

    async def open(self) -> None:
        """Start the first process and compile the template there.

        Raises:
            ConfigurationError: it is not valid Jinja, or takes too much memory or time.
        """
        await self._release(await self._acquire())

    async def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text for a conversation; see `ChatTemplate.render`.

        Raises:
            TemplateRefused: the template raised an error, or took too much.
        """
        request = {
            "messages": list(messages),
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "variables": dict(variables or {}),
        }
        try:
            if len(messages) > _SMALL_MESSAGES:
                frame = await asyncio.to_thread(pack, request)
            else:
                frame = pack(request)
        except (RecursionError, ValueError) as exc:
            raise TemplateRefused("the conversation is nested too deeply to be rendered") from exc
        # Goes on when the client hangs up: the process would answer the next request with this text.
        task = asyncio.create_task(self._render(frame), name="render")
        self._running.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End all processes."""
        for process in list(self._processes):
            await process.end()
        self._processes.clear()

    def _forget(self, task: asyncio.Task[str]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # was told to the client, if it is still there

    async def _render(self, frame: bytes) -> str:
        try:
            try:
                document, text = await self._exchange(await self._acquire(), frame)
            except _Ended as exc:
                if not exc.may_be_innocent:
                    raise
                document, text = await self._exchange(await self._start(), frame)
        except ConfigurationError as exc:
            raise TemplateRefused(exc.message) from exc
        except _Ended as exc:
            raise TemplateCostly(
                f"the model's chat template cannot render this conversation: {exc}"
            ) from exc
        if "error" not in document:
            return text
        kind = TemplateCostly if document.get("is_costly") else TemplateRefused
        raise kind(shown(str(document["error"]), 1000))

    async def _exchange(self, process: _Process, frame: bytes) -> tuple[dict[str, Any], str]:
        """Exchange one request; the process is idle afterwards, or gone."""
        try:
            found = await process.exchange(frame)
        except BaseException:
            await self._drop(process)
            raise
        await self._release(process)
        return found

    async def _acquire(self) -> _Process:
        """Return a process that nobody uses: an idle one, or a new one if that takes too long."""
        while True:
            if self._num_reserved == 0:
                return await self._start()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    return await self._idle.get()
            if self._num_reserved < MAX_PROCESSES:
                return await self._start()

    async def _start(self) -> _Process:
        self._num_reserved += 1
        process: _Process | None = None
        try:
            process = await _Process.start()
            self._processes.add(process)
            document, _ = await process.exchange(pack(self._recipe))
        except BaseException as exc:
            self._num_reserved -= 1
            if process is not None:
                self._processes.discard(process)
                await process.end()
            if isinstance(exc, _Ended | OSError):
                raise _unusable(f"cannot use the chat template: {exc}") from exc
            raise
        if "error" in document:
            await self._drop(process)
            raise _unusable(shown(str(document["error"]), 1000))
        return process

    async def _release(self, process: _Process) -> None:
        if self._idle.qsize() > 0:  # one is enough while renderings are quick
            await self._drop(process)
        else:
            self._idle.put_nowait(process)

    async def _drop(self, process: _Process) -> None:
        self._num_reserved -= 1
        self._processes.discard(process)
        await process.end()


class _Process:
    """One process and its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> _Process:
        """Start a process; its template comes with the first exchange."""
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                _MODULE,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={name: os.environ[name] for name in _KEPT if name in os.environ},
            )
        )

    async def exchange(self, frame: bytes) -> tuple[dict[str, Any], str]:
        """Send a request; return the answer and its text.

        Raises:
            _Ended: there is none.
        """
        if self._process.returncode is not None:
            raise _Ended(_ENDED, may_be_innocent=True)
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS):
                return await self._exchange(frame)
        except TimeoutError as exc:
            raise _Ended(f"it takes more than {_DEADLINE_SECONDS:.0f} seconds") from exc
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            status = await self._process.wait()
            if status == -signal.SIGXCPU:
                text = f"it takes more than {MAX_PROCESSOR_SECONDS} seconds of processor time"
                raise _Ended(text) from exc
            has_begun = isinstance(exc, asyncio.IncompleteReadError) and bool(exc.partial)
            raise _Ended(_ENDED, may_be_innocent=status < 0 and not has_begun) from exc

    async def _exchange(self, frame: bytes) -> tuple[dict[str, Any], str]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "made with pipes"
        assert stdout is not None, "made with pipes"
        stdin.write(frame)
        await stdin.drain()
        length, text_bytes = PREFIX.unpack(await stdout.readexactly(PREFIX.size))
        if length + text_bytes > 2 * MAX_TEXT_BYTES:
            raise _Ended("its answer is too long")
        document: dict[str, Any] = json.loads(await stdout.readexactly(length))
        text = await stdout.readexactly(text_bytes)
        return document, text.decode("utf-8", "surrogatepass")

    async def end(self) -> None:
        """Kill the process, if it lives."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()


def _unusable(message: str) -> ConfigurationError:
    return ConfigurationError(
        message, param="chat-template", hint="Bring another one with --chat-template."
    )

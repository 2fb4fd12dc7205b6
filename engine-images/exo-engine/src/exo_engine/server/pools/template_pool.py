"""Renders conversations in processes of their own, so that a slow template stops nobody else's answers.

A rendering over its limits ends its process, and that request alone is refused; see `ProcessPool`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from exo_engine.errors import ConfigurationError
from exo_engine.foreign_files import shown
from exo_engine.server.pools.process_pool import Allowance, Ended, NotStarted, ProcessPool
from exo_engine.tokenizer.confined import pack
from exo_engine.tokenizer.template_sources import (
    MAX_PROCESSOR_SECONDS,
    Message,
    TemplateCostly,
    TemplateRefused,
)

_ALLOWED = Allowance(MAX_PROCESSOR_SECONDS)
_MODULE = "exo_engine.tokenizer.template_process"
_SMALL_MESSAGES = 100
_ENDED = "the process that renders it ended; it may take more memory than there is"


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
        recipe = {
            "sources": dict(sources),
            "special_tokens": dict(special_tokens),
            "content_format": content_format,
            "variables": dict(variables or {}),
        }
        self.pool = ProcessPool(_MODULE, recipe, loading=_ALLOWED, ended=_ENDED)

    async def open(self) -> None:
        """Start the first process and compile the template there.

        Raises:
            ConfigurationError: it is not valid Jinja, or takes too much memory or time.
        """
        try:
            await self.pool.open()
        except NotStarted as exc:
            raise ConfigurationError(
                str(exc) if exc.document else f"cannot use the chat template: {exc}",
                param="chat-template",
                hint="Bring another one with --chat-template.",
            ) from exc

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
            NoProcess: nothing can render it now.
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
        try:
            document, text = await self.pool.ask(frame, _ALLOWED)
        except Ended as exc:
            raise TemplateCostly(
                f"the model's chat template cannot render this conversation: {exc}"
            ) from exc
        if "error" not in document:
            return text.decode("utf-8", "surrogatepass")
        kind = TemplateCostly if document.get("is_costly") else TemplateRefused
        raise kind(shown(str(document["error"]), 1000))

    async def close(self) -> None:
        """End all processes."""
        await self.pool.close()

"""Render a conversation with a model's Jinja chat template.

The result equals that of `apply_chat_template` in transformers, whose environment this follows
(sandbox, trim settings, `tojson`, `raise_exception`, `strftime_now`, loop controls, `generation`
blocks). A template is code that came with the model: it runs in Jinja's immutable sandbox, and that in
a process of its own, `template_process.py`. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser

from exo_engine.errors import ConfigurationError
from exo_engine.foreign_files import shown
from exo_engine.tokenizer import template_limits
from exo_engine.tokenizer.template_limits import (
    BoundedEnvironment,
    TemplateTooCostly,
    bounded_filter,
)
from exo_engine.tokenizer.template_sources import (
    REASONING_FIELDS,
    Message,
    TemplateCostly,
    TemplateRefused,
)

_PROBE = "kQ7probe"
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplate:
    """A model's chat template, compiled."""

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str],
        content_format: str = "auto",
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Compile the templates.

        Args:
            sources: templates by name; `default` is needed, `tool_use` is taken when a request
                brings tools.
            special_tokens: seen by the template as `bos_token` and so on.
            content_format: `string`, `openai` (lists of parts are passed on) or `auto`.
            variables: further variables, which a request may override.

        Raises:
            ConfigurationError: a template is not valid Jinja, or takes too much memory or time.
        """
        environment = _environment()
        try:
            self._templates = {
                name: environment.from_string(source) for name, source in sources.items()
            }
        except (
            jinja2.TemplateError,
            TemplateTooCostly,
            RecursionError,
            SyntaxError,
            MemoryError,
        ) as exc:
            raise ConfigurationError(
                f"cannot compile the chat template: {shown(exc)}",
                param="chat-template",
                hint="Bring another one with --chat-template.",
            ) from exc
        self._knows_developer = any("developer" in source for source in sources.values())
        self._variables = {**special_tokens, **(variables or {})}
        self._passes_parts = content_format == "openai" or (
            content_format == "auto" and self._understands_parts()
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text for a conversation.

        Args:
            messages: what was said; content is text, None, or a list of text parts.
            tools: JSON schemas of functions that the model may call.
            add_generation_prompt: end with the words that open the assistant's turn.
            continue_final_message: end inside the last message, so that the model goes on with it.
            variables: further variables for the template.

        Raises:
            TemplateRefused: the template raised an error.
        """
        prepared = [self._prepare(message) for message in messages]
        if continue_final_message:
            prepared[-1] = _with_tag(prepared[-1])
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        scope = {**self._variables, **(variables or {})}
        scope.update(
            messages=prepared,
            tools=list(tools) if tools else None,
            documents=scope.get("documents"),
            add_generation_prompt=add_generation_prompt,
        )
        try:
            text = template_limits.render(self._templates[name], scope)
        except TemplateRefused:
            raise
        except (TemplateTooCostly, MemoryError) as exc:
            raise TemplateCostly(
                f"the model's chat template cannot render this conversation: {exc}"
            ) from exc
        except Exception as exc:  # a template is foreign code; it may fail in any way
            raise TemplateRefused(
                f"the model's chat template cannot render this conversation: {shown(exc)}"
            ) from exc
        return _cut_at_tag(text) if continue_final_message else text

    def _prepare(self, message: Message) -> dict[str, Any]:
        prepared = dict(message)
        if prepared.get("role") == "developer" and not self._knows_developer:
            prepared["role"] = "system"  # OpenAI's newer name for it, which few templates know
        content = prepared.get("content")
        if isinstance(content, list) and not self._passes_parts:
            prepared["content"] = "\n".join(part["text"] for part in content)
        reasoning = next(
            (prepared[key] for key in REASONING_FIELDS if prepared.get(key) is not None), None
        )
        if reasoning is not None:
            prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
        return prepared

    def _understands_parts(self) -> bool:
        """Find out by trying whether the template renders the text of a list of parts."""
        self._passes_parts = True
        part = {"type": "text", "text": _PROBE}
        try:
            text = self.render([{"role": "user", "content": [part]}])
        except TemplateCostly as exc:
            raise ConfigurationError(
                f"cannot use the chat template, even for one short message: {exc.message}",
                param="chat-template",
                hint="Bring another one with --chat-template.",
            ) from exc
        except TemplateRefused:
            return False
        # A template that only knows strings prints the list itself, keys and all.
        return _PROBE in text and "'type'" not in text and '"type"' not in text


def _with_tag(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + _CONTINUE_TAG}
    if isinstance(content, list) and content:
        last = {**content[-1], "text": content[-1]["text"] + _CONTINUE_TAG}
        return {**message, "content": [*content[:-1], last]}
    raise TemplateRefused("continue_final_message is set, but the last message has no text")


def _cut_at_tag(text: str) -> str:
    at = text.rfind(_CONTINUE_TAG.strip())
    if at < 0:
        raise TemplateRefused(
            "continue_final_message is set, but the chat template leaves the last message out"
        )
    is_whole = text[at : at + len(_CONTINUE_TAG)] == _CONTINUE_TAG
    # A template that trims content trimmed the tag's blank; the text before it would be trimmed too.
    return text[:at] if is_whole else text[:at].rstrip()


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = bounded_filter("tojson", _tojson)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is just text."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance attribute)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Replace the block by its body; what it sets stays inside."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefused(f"the model's chat template refuses this conversation: {shown(message)}")


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time is what templates mean

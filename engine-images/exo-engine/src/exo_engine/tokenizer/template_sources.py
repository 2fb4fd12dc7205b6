"""Where a model's chat templates come from, and what can be wrong with one. Needs no Jinja."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exo_engine.errors import ConfigurationError, EngineError, ModelUnusable
from exo_engine.foreign_files import MAX_TEMPLATE_BYTES, read_regular
from exo_engine.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names that templates have for what the assistant thought."""
MAX_PROCESSOR_SECONDS = 5
"""Of one rendering, as the kernel counts; the sandbox itself stops loops after three."""


class TemplateRefused(EngineError):
    """The template refused the conversation, or broke on it; the message says why."""


class TemplateCostly(TemplateRefused):
    """The template would take too much memory or time."""


def find_templates(
    tokenizer: Tokenizer, tokenizer_dir: Path, *, override: str | None = None
) -> dict[str, str]:
    """Return the text of a model's chat templates by name; empty when it has none, as base models do.

    Args:
        tokenizer: for its configuration.
        tokenizer_dir: where chat_template.jinja may lie.
        override: a path or the template itself, instead of the model's.

    Raises:
        ConfigurationError: a template cannot be read.
    """
    if override is not None:
        sources = {"default": _read_override(override)}
    else:
        sources = _model_templates(tokenizer.config.get("chat_template"), tokenizer_dir)
    if sources:
        sources.setdefault("default", next(iter(sources.values())))
    return sources


def _model_templates(configured: Any, tokenizer_dir: Path) -> dict[str, str]:
    sources: dict[str, str] = {}
    if isinstance(configured, str):
        sources["default"] = configured
    elif isinstance(configured, list):
        try:
            sources = {entry["name"]: entry["template"] for entry in configured}
        except (TypeError, KeyError) as exc:
            raise _no_templates() from exc
    elif isinstance(configured, dict):
        sources = dict(configured)
    if not all(isinstance(text, str) for item in sources.items() for text in item):
        raise _no_templates()
    for path in sorted((tokenizer_dir / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = _read(path)
    if (tokenizer_dir / "chat_template.jinja").exists():
        sources["default"] = _read(tokenizer_dir / "chat_template.jinja")
    return sources


def _no_templates() -> ConfigurationError:
    return ConfigurationError(
        "cannot read chat_template in tokenizer_config.json: expected a template or a list of "
        "objects with name and template",
        param="chat-template",
        hint="Bring another one with --chat-template.",
    )


def _read_override(override: str) -> str:
    if any(mark in override for mark in ("{{", "{%", "\n")):
        return override
    return _read(Path(override))


def _read(path: Path) -> str:
    try:
        return read_regular(path, MAX_TEMPLATE_BYTES).decode("utf-8")
    except (ModelUnusable, ValueError) as exc:
        raise ConfigurationError(
            f"cannot read the chat template {path}: {exc}",
            param="chat-template",
            hint="Give the path of a Jinja file, or the template itself.",
        ) from exc

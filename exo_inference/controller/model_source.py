"""Judging a new model: the form of its name before the source is asked, its answer afterwards.

Called by the model routes. Whether a repository exists, is gated or empty is known before a
deployment can ask for it; a source that cannot be reached is asked again later.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from exo_inference.controller.body import Fields
from exo_inference.controller.problems import Issue, Refused, field_issue, refuse
from exo_inference.hub.base import (
    ModelGated,
    ModelNotFound,
    ModelSource,
    ModelUnusable,
    ResolvedModel,
    SourceUnreachable,
    TokenRejected,
)

FindSource = Callable[[str], ModelSource]
"""Returns where a model of this name comes from."""

RESOLVE_TIMEOUT_SECONDS = 5.0

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[\w./+@-]{1,200}", re.ASCII)
_TOKEN = re.compile(r"[\x21-\x7e]{1,500}")
_TITLE = "Model not created"
_FORMS = "Use ORG/NAME of the Hub, file:///ABSOLUTE/PATH, or exo/tiny-chat."


def check_new_model(fields: Fields) -> dict[str, Any]:
    """Return the fields of a new model, if their form is right.

    Raises:
        Refused
    """
    issues = list(fields.issues)
    values = fields.values
    name = values.get("name")
    if isinstance(name, str) and (wrong := _find_fault(name)):
        text = f"{name[:256]!r} is not a model name: {wrong}"
        issues.append(Issue(text, "$['name']", text))
    revision = values.get("revision")
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        issues.append(field_issue("revision", "must be a branch, a tag or a commit"))
    token = values.get("huggingface_token")
    if token is not None and not _TOKEN.fullmatch(token.get_secret_value()):
        text = "must be 1 to 500 printable ASCII characters without blanks"
        issues.append(field_issue("huggingface-token", text))
    if issues:
        named = any(issue.location == "$['name']" for issue in issues)
        raise refuse(_TITLE, issues, hint=_FORMS if named else None)
    return values


async def try_resolve(
    source: ModelSource, name: str, *, revision: str | None, token: str | None
) -> ResolvedModel | str:
    """Ask the source for the model; return why, if it cannot be reached in time.

    Raises:
        Refused: the source says that the model cannot be had like this.
    """
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_SECONDS):
            return await source.resolve(name, revision=revision, token=token)
    except TimeoutError:
        return f"the source did not answer within {RESOLVE_TIMEOUT_SECONDS:.0f} s"
    except SourceUnreachable as exc:
        return exc.message
    except ModelNotFound as exc:
        raise _refused(404, exc.message, exc.hint or "Check the name and the revision.") from exc
    except ModelGated as exc:
        hint = "Accept its licence on the Hub and give a token of that account."
        raise _refused(403, exc.message, exc.hint or hint) from exc
    except TokenRejected as exc:
        raise _refused(403, exc.message, exc.hint or "Make a new token on the Hub.") from exc
    except ModelUnusable as exc:
        raise _refused(412, exc.message, exc.hint or "Choose a model in safetensors.") from exc


def _find_fault(name: str) -> str | None:
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "it holds a control character"
    if name.startswith("file:"):
        path = name.removeprefix("file://")
        if not name.startswith("file:///") or len(name) > 4096:
            return "a file source is file:// and an absolute path"
        return "the path must not hold '..'" if ".." in path.split("/") else None
    if not _HUB_NAME.fullmatch(name) or ".." in name or "--" in name:
        return "it is not of the form ORG/NAME"
    return None


def _refused(status: int, message: str, hint: str) -> Refused:
    return Refused(status, _TITLE, message, hint=hint)

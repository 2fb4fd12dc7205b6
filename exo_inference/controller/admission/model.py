"""Judging a new model: the form of its name before the source is asked, its answer afterwards.

Called by the model routes. Whether a repository exists, is gated or empty is known before a
deployment can ask for it; a source that cannot be reached is asked again later.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from exo_inference.controller.admission.fields import Fields
from exo_inference.controller.admission.problems import Issue, Refused, field_issue, refuse
from exo_inference.hub import FILE_PREFIX
from exo_inference.hub.base import (
    InvalidModelName,
    ModelGated,
    ModelNotFound,
    ModelSource,
    ModelUnusable,
    ResolvedModel,
    SourceUnreachable,
    TokenRejected,
)

FindSource = Callable[[str], ModelSource]
"""Returns where a model of this name comes from; raises InvalidModelName."""

RESOLVE_TIMEOUT_SECONDS = 5.0
"""Of a request that creates a model; what is not known then is asked for behind it."""

LONGEST_RESOLVE_SECONDS = 60.0
"""Of all that a source is asked to find one model, however little it sends at a time."""

_REVISION = re.compile(r"[\w./+@-]{1,200}", re.ASCII)
_TOKEN = re.compile(r"[\x21-\x7e]{1,500}")
_TITLE = "Model not created"
_MAX_NAME = 4096


def check_new_model(
    fields: Fields, find_source: FindSource, *, is_cluster: bool = False
) -> dict[str, Any]:
    """Return the fields of a new model, if their form is right.

    Args:
        fields: of the body.
        find_source: where it comes from.
        is_cluster: folders of this machine are refused, and not looked at.

    Raises:
        Refused
    """
    issues = list(fields.issues)
    values = fields.values
    name = values.get("name")
    hint = None
    if isinstance(name, str):
        hint = _check_name(name, find_source, issues, is_cluster=is_cluster)
    revision = values.get("revision")
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        issues.append(field_issue("revision", "must be a branch, a tag or a commit"))
    token = values.get("huggingface_token")
    if token is not None and not _TOKEN.fullmatch(token.get_secret_value()):
        text = "must be 1 to 500 printable ASCII characters without blanks"
        issues.append(field_issue("huggingface-token", text))
    if issues:
        raise refuse(_TITLE, issues, hint=hint)
    return values


async def resolve_in_time(
    source: ModelSource,
    name: str,
    *,
    revision: str | None,
    token: str | None,
    seconds: float,
) -> ResolvedModel:
    """Ask the source for the model, and give up after so many seconds in all.

    Raises:
        HubError: those of `ModelSource.resolve`.
    """
    try:
        async with asyncio.timeout(seconds):
            return await source.resolve(name, revision=revision, token=token)
    except TimeoutError as exc:
        raise SourceUnreachable(f"the source did not answer within {seconds:.0f} s") from exc


async def try_resolve(
    source: ModelSource, name: str, *, revision: str | None, token: str | None
) -> ResolvedModel | str:
    """Ask the source for the model; return why, if it cannot be reached in time.

    Raises:
        Refused: the source says that the model cannot be had like this.
    """
    seconds = RESOLVE_TIMEOUT_SECONDS
    try:
        return await resolve_in_time(source, name, revision=revision, token=token, seconds=seconds)
    except SourceUnreachable as exc:
        return exc.message
    except InvalidModelName as exc:
        raise _refused(400, exc.message, exc.hint or "Check the name.") from exc
    except ModelNotFound as exc:
        raise _refused(404, exc.message, exc.hint or "Check the name and the revision.") from exc
    except ModelGated as exc:
        hint = "Accept its licence on the Hub and give a token of that account."
        raise _refused(403, exc.message, exc.hint or hint) from exc
    except TokenRejected as exc:
        raise _refused(403, exc.message, exc.hint or "Make a new token on the Hub.") from exc
    except ModelUnusable as exc:
        hint = "Mend its files, or choose another model."
        raise _refused(412, exc.message, exc.hint or hint) from exc


def no_directory_error(source: str) -> InvalidModelName:
    """Return the error of a folder as the source of a model on a cluster."""
    return InvalidModelName(
        f"{source[:256]!r} is a directory of one machine, which a cluster does not have",
        hint="Use the name of a model on the Hub, such as Qwen/Qwen3-0.6B.",
    )


def _check_name(
    name: str, find_source: FindSource, issues: list[Issue], *, is_cluster: bool
) -> str | None:
    """Add what is wrong with the form of a name; return the next step, if the source knows one."""
    hint, text = None, None
    if len(name) > _MAX_NAME or any(ord(c) < 32 or ord(c) == 127 for c in name):
        text = f"{name[:256]!r} is not a model name: it is too long or holds control characters"
    elif name.startswith("file:") and ".." in name.split("/"):
        text = f"{name[:256]!r} is not a model name: the path must not hold '..'"
    else:
        try:
            if is_cluster and name.startswith(FILE_PREFIX):
                raise no_directory_error(name)
            find_source(name)
        except InvalidModelName as exc:
            text, hint = exc.message, exc.hint
    if text is not None:
        issues.append(Issue(text, "$['name']", text))
    return hint


def _refused(status: int, message: str, hint: str) -> Refused:
    return Refused(status, _TITLE, message, hint=hint)

"""What another release of the engine means for the flags that a deployment has.

`update --inference-engine-version` asks it: flags that the other release does not have stop the
update, unless `--migrate` puts the rewritten ones in their place.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from exo_inference.engine_names import default_engine, facts_of
from exo_inference.errors import ExoError

if TYPE_CHECKING:
    from exo_inference.cli.session import Session
    from exo_inference.engines.migration import Change, Migration
    from exo_inference.wire import Deployment


def migrated_flags(
    session: Session, deployment: Deployment, version: str, *, migrate: bool
) -> tuple[tuple[str, ...] | None, tuple[Change, ...]]:
    """Return the flags that the update has to set, or None where the present ones stay.

    Also what is different in the other release, to be told when the update has been accepted.

    Raises:
        ExoError: flags do not exist there, and nobody asked for others; or nothing replaces them.
        UnknownRelease: `migrate` was asked for, and the catalogue lacks the release.
    """
    result = _migrate(deployment, version, must=migrate)
    if result is None:
        return None, ()
    if all(change.kind == "default" for change in result.changes):
        return None, result.changes
    if not result.is_clean or not migrate:
        tell_changes(session, result.changes)
    if not result.is_clean:
        raise ExoError(
            f'not all flags of deployment "{deployment.name}" can be taken to vLLM {version}; '
            "nothing was changed",
            hint="Give the flags for that release with --inference-engine-params.",
        )
    if not migrate:
        raise ExoError(
            f'not all flags of deployment "{deployment.name}" exist in vLLM {version}; '
            "nothing was changed",
            hint="Repeat it with --migrate, which is the same as:\n"
            f"  {_to_paste(session, deployment, version, result)}",
        )
    return result.flags, result.changes


def tell_changes(session: Session, changes: Sequence[Change]) -> None:
    """Say on stderr what is different in the other release, one line each."""
    for change in changes:
        session.remark(f"{change.kind:<8} {change.detail}")


def _migrate(deployment: Deployment, version: str, *, must: bool) -> Migration | None:
    from exo_inference.engines import DEFAULT_VERSION, VERSIONS
    from exo_inference.engines.flags.catalogue import UnknownRelease
    from exo_inference.engines.migration import migrate

    name, _, _ = (deployment.inference_engine or default_engine("")).partition(" ")
    facts = facts_of(name)
    present = deployment.inference_engine_version or DEFAULT_VERSION
    if present == version or facts.is_ours or not facts.takes_vllm_flags:  # there is one list
        return None
    if version not in VERSIONS and not must:
        return None  # the control plane refuses it, or knows releases that we do not
    try:
        return migrate(deployment.inference_engine_parameters or [], present, version)
    except UnknownRelease:
        if must:
            raise
        return None


def _to_paste(session: Session, deployment: Deployment, version: str, result: Migration) -> str:
    words = ["exo", "ai", "deployment", "update", deployment.name]
    line = shlex.join([*words, "--inference-engine-version", version, *session.flags.to_paste])
    if not result.flags:
        return f"{line} --clear-inference-engine-params"
    return f"{line} --inference-engine-params {shlex.quote(shlex.join(result.flags))}"

"""`usage`: requests and tokens per deployment and key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from exo_inference.cli.completion.names import complete_deployments
from exo_inference.cli.rendering.views import Column, View
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command

if TYPE_CHECKING:
    from exo_inference.wire import KeyUsage

FIRST_ERROR = 400

USAGE: View[KeyUsage] = View(
    (
        Column("deployment", "Deployment", "Deployment", lambda u: _deployment(u)),
        Column("key", "Key", "Key", lambda u: _key(u)),
        Column("requests", "Requests", "Requests", lambda u: sum(u.requests.values())),
        Column("errors", "Errors", "Errors", lambda u: _num_errors(u)),
        Column("prompt_tokens", "PromptTokens", "Prompt Tokens", lambda u: u.prompt_tokens),
        Column(
            "completion_tokens",
            "CompletionTokens",
            "Completion Tokens",
            lambda u: u.completion_tokens,
        ),
        Column("deployment_id", "DeploymentID", "", lambda u: u.deployment_id, added=True),
        Column("key_id", "KeyID", "", lambda u: u.key_id, added=True),
        Column("requests_by_status", "RequestsByStatus", "", lambda u: u.requests, added=True),
    )
)


@command(
    "usage",
    examples=[
        Example("See who used what", "exo ai usage"),
        Example("See which keys of one deployment are used", "exo ai usage chat"),
        Example(
            "Sum up the tokens of a deployment",
            "exo ai usage chat -O json | jq '[.[].completion_tokens] | add'",
        ),
    ],
)
@click.argument(
    "deployment", metavar="[<name-or-id>]", required=False, shell_complete=complete_deployments
)
@pass_session
def usage(session: Session, deployment: str | None) -> None:
    """Show requests and tokens per deployment and key, on one machine.

    Counted since its directory was made, also over restarts; of what was deleted the ids are left. Errors
    are answers from 400 on, and clients that hung up. On a cluster Prometheus has these figures.
    """
    output = session.output(USAGE.field_names)
    with session.connect() as client:
        rows = client.usage()
        if deployment is not None and deployment not in {row.deployment_id for row in rows}:
            wanted = client.deployments.find(deployment).id
            rows = [row for row in rows if row.deployment_id == wanted]
        elif deployment is not None:
            rows = [row for row in rows if row.deployment_id == deployment]
    output.show_list([USAGE.record(row) for row in rows], USAGE.headers)


def _deployment(row: KeyUsage) -> str:
    return row.deployment or row.deployment_id or "(unknown)"


def _key(row: KeyUsage) -> str:
    if row.key_id and row.key_id == row.deployment_id:
        return "(its own)"
    return row.key or row.key_id or "(none)"


def _num_errors(row: KeyUsage) -> int:
    return sum(n for status, n in row.requests.items() if int(status) >= FIRST_ERROR)

"""Completes names on the command line by asking the API; quick or not at all, and never an error.

A shell waits for the answer while somebody types, so one short time limit covers everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from exo_inference.sdk import Client

LIMIT_SECONDS = 1.5


def complete_models(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a model."""
    return _complete(ctx, incomplete, lambda client: [m.name for m in client.models.list()])


def complete_deployments(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a deployment."""
    return _complete(ctx, incomplete, lambda client: [d.name for d in client.deployments.list()])


def complete_objects(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a deployment or a model."""

    def names(client: Client) -> list[str]:
        deployments = [deployment.name for deployment in client.deployments.list()]
        return deployments + [model.name for model in client.models.list()]

    return _complete(ctx, incomplete, names)


def complete_api_keys(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of an API key."""
    return _complete(ctx, incomplete, lambda client: [k.name for k in client.api_keys.list()])


def complete_zones(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a zone."""
    return _complete(ctx, incomplete, lambda client: [z.name for z in client.zones.list()])


def complete_gpu_types(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a GPU family."""
    return _complete(
        ctx, incomplete, lambda client: [t.family for t in client.deployments.instance_types()]
    )


def _complete(
    ctx: click.Context, incomplete: str, names: Callable[[Client], list[str]]
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from exo_inference.cli.rendering.terminal import is_hazardous

    found = _within_limit(ctx, names)
    return [
        CompletionItem(name)
        for name in sorted(set(found))
        if name.startswith(incomplete) and not any(map(is_hazardous, name))
    ]


def _within_limit(ctx: click.Context, names: Callable[[Client], list[str]]) -> list[str]:
    """Ask in a thread that is left behind when it takes too long."""
    import threading

    found: list[str] = []

    def ask() -> None:
        try:
            from exo_inference.cli.session import Session

            with Session.of(ctx).connect(timeout_seconds=LIMIT_SECONDS) as client:
                found.extend(names(client))
        except Exception:
            # Whatever it is, a shell that completes must not print it.
            return

    thread = threading.Thread(target=ask, name="completion", daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    return found

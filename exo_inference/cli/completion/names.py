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

    Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

LIMIT_SECONDS = 1.5


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


def _completer(names: Callable[[Client], list[str]]) -> Complete:
    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from exo_inference.cli.rendering.terminal import is_hazardous

        found = _within_limit(ctx, names)
        return [
            CompletionItem(name)
            for name in sorted(set(found))
            if name.startswith(incomplete) and not any(map(is_hazardous, name))
        ]

    return complete


def _objects(client: Client) -> list[str]:
    deployments = [deployment.name for deployment in client.deployments.list()]
    return deployments + [model.name for model in client.models.list()]


complete_models = _completer(lambda client: [each.name for each in client.models.list()])
complete_deployments = _completer(lambda client: [each.name for each in client.deployments.list()])
complete_objects = _completer(_objects)
complete_api_keys = _completer(lambda client: [each.name for each in client.api_keys.list()])
complete_zones = _completer(lambda client: [each.name for each in client.zones.list()])
complete_gpu_types = _completer(
    lambda client: [each.family for each in client.deployments.instance_types()]
)

"""`model delete`."""

from __future__ import annotations

import click

from exo_inference.cli.completion.names import complete_models
from exo_inference.cli.deletion import Deletable, DeleteOptions, delete_all
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.wait import wait_options
from exo_inference.cli.writes import dry_run_option, force_option


@command(
    "delete",
    aliases=["del", "rm"],
    examples=[
        Example("Delete a model, after a question", "exo ai model delete Qwen/Qwen3-0.6B"),
        Example(
            "Delete two without being asked", "exo ai model rm -f Qwen/Qwen3-0.6B exo/tiny-chat"
        ),
        Example("See whether one could be deleted", "exo ai model delete exo/tiny-chat --dry-run"),
    ],
)
@click.argument(
    "models", metavar="<name-or-id>...", nargs=-1, required=True, shell_complete=complete_models
)
@force_option
@wait_options("the models are gone")
@dry_run_option
@pass_session
def delete(
    session: Session,
    models: tuple[str, ...],
    force: bool,
    wait: bool,
    wait_timeout: float,
    dry_run: bool,
) -> None:
    """Delete models and the files fetched for them.

    A model that a deployment uses is refused, with the deployments named. The command returns when
    the models are gone, and ends with exit code 8 if that takes longer than `--timeout`. Without
    `--force` each deletion is asked about, and one no deletes nothing; with it, unknown names are
    only warned about.
    """
    with session.connect() as client:
        what = Deletable(
            kind="model",
            listed=client.models.list,
            delete=lambda model_id, dry: client.models.delete(model_id, dry_run=dry),
            wait_until_deleted=client.models.wait_until_deleted,
        )
        options = DeleteOptions(
            models, force, dry_run, wait_timeout if wait else None, wait_timeout
        )
        delete_all(session, client, what, options)

"""`api-key delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from exo_inference.cli.completion.names import complete_api_keys
from exo_inference.cli.deletion import Deletable, DeleteOptions, delete_all
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.writes import force_option
from exo_inference.errors import UsageError

if TYPE_CHECKING:
    from exo_inference.wire import Operation


@command(
    "delete",
    aliases=["del", "rm"],
    examples=[
        Example("Take a key back, after a question", "exo ai api-key delete phone"),
        Example("Take two back without being asked", "exo ai api-key rm -f phone bot"),
        Example("See in a script what was deleted", "exo ai api-key delete phone -f -O json"),
    ],
)
@click.argument(
    "keys", metavar="<name-or-id>...", nargs=-1, required=True, shell_complete=complete_api_keys
)
@force_option
@pass_session
def delete(session: Session, keys: tuple[str, ...], force: bool) -> None:
    """Take keys back: they open nothing any more.

    Within about a second no gateway takes them; requests that it has begun are finished. Without
    `--force` each deletion is asked about, and one no deletes nothing.
    """
    with session.connect() as client:

        def delete_one(key_id: str, dry_run: bool) -> Operation:
            if dry_run:
                raise UsageError("deleting a key has no dry run")
            return client.api_keys.delete(key_id)

        what = Deletable("api-key", client.api_keys.list, delete_one)
        delete_all(session, client, what, DeleteOptions(keys, force, dry_run=False))

"""`exo completion`: the script that makes a shell complete our commands, flags and names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from exo_inference.cli.root import COMPLETION_VARIABLE, PROGRAM, root
from exo_inference.cli.tree import Example, command

if TYPE_CHECKING:
    from click.shell_completion import ShellComplete

# The second name of the program completes like the first.
_SECOND_NAME = {
    "bash": "complete -o nosort -F _exo_completion exo-inference\n",
    "zsh": "compdef _exo_completion exo-inference\n",
    "fish": "complete --no-files --command exo-inference --arguments '(_exo_completion)'\n",
}


@command(
    "completion",
    examples=[
        Example("Complete in this bash", "source <(exo completion bash)"),
        Example("Complete in every new zsh", "exo completion zsh > ~/.zfunc/_exo"),
        Example(
            "Complete in every new fish",
            "exo completion fish > ~/.config/fish/completions/exo.fish",
        ),
    ],
)
@click.argument("shell", type=click.Choice(list(_SECOND_NAME)), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print a completion script for a shell.

    It completes commands, flags and their values, and asks the API for the names of models and
    deployments where that is quick. When the API cannot be reached, it completes nothing and says
    nothing.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, f"click knows no completion for {shell}"
    script = kind(root, {}, PROGRAM, COMPLETION_VARIABLE)
    # Not `script.source()`: for bash it would run bash to ask for its version.
    click.echo(_source(script))
    click.echo(_SECOND_NAME[shell], nl=False)


def _source(script: ShellComplete) -> str:
    return script.source_template % script.source_vars()

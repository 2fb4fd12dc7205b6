"""`params check`."""

from __future__ import annotations

import click

from exo_inference.cli.errors.output import print_refusal
from exo_inference.cli.rendering.terminal import print_data
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command

WRONG = 1
"""Exit code when the release does not take the flags."""


@command(
    "check",
    examples=[
        Example("Check flags for the default release", "exo ai params check -- --max-tokens 8192"),
        Example(
            "Check them for another one",
            "exo ai params check --version 0.20.0 -- --kv-cache-dtype nvfp4 -tp 2",
        ),
        Example(
            "Use the answer in a script",
            "exo ai params check -O json -- -O3 --enforce-eager=true | jq -r '.[].reason'",
        ),
    ],
)
@click.option("--version", metavar="<version>", help="Release of vLLM (default 0.28.0).")
@click.argument("flags", metavar="-- <flags>", nargs=-1, type=click.UNPROCESSED)
@pass_session
def check(session: Session, version: str | None, flags: tuple[str, ...]) -> int:
    """Check flags of vLLM against a release.

    Everything that is wrong is told at once, each with what to write instead. Exits with 0 when the
    release takes the flags, and with 1 when it does not, which `-O json` also tells as an error on
    stderr. Memory and models are not looked at.
    """
    from exo_inference.engines import vllm

    problems = vllm.ENGINE.read(flags, version or None).problems
    output = session.output((), configured=False)
    if output.is_structured:
        fields = ("index", "flag", "reason", "detail")
        output.print_value([{name: getattr(p, name) for name in fields} for p in problems])
    elif problems:
        print_data("".join(f"{problem.detail}\n" for problem in problems))
    else:
        session.success("All flags are right.")
    if not problems:
        return 0
    print_refusal(output, "; ".join(problem.detail for problem in problems))
    return WRONG

"""`deployment update`."""

from __future__ import annotations

from dataclasses import dataclass

import click

from exo_inference.cli.completing import complete_deployments
from exo_inference.cli.deployment.engine_flags import (
    engine_options,
    print_parameter_help,
    split_parameters,
    wants_parameter_help,
)
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.waiting import wait_for_deployment, wait_options
from exo_inference.cli.writing import by_name, dry_run_option, finish
from exo_inference.errors import UsageError


@dataclass(frozen=True)
class UpdateOptions:
    """What `deployment update` was asked to do; None leaves a field as it is."""

    deployment: str
    name: str | None
    parameters: tuple[str, ...] | None
    engine_version: str | None
    wait: bool
    wait_seconds: float
    dry_run: bool


@command(
    "update",
    examples=[
        Example("Rename a deployment", "exo ai deployment update chat --name assistant"),
        Example(
            "Serve longer prompts, without dropping a request meanwhile",
            "exo ai deployment update chat --inference-engine-params "
            "'--max-model-len=16384' --wait",
        ),
        Example(
            "Go back to the engine's defaults",
            "exo ai deployment update chat --clear-inference-engine-params",
        ),
    ],
)
@click.argument(
    "deployment", metavar="<name-or-id>", required=False, shell_complete=complete_deployments
)
@click.option("--name", metavar="<name>", help="New name.")
@engine_options
@click.option(
    "--clear-inference-engine-params",
    "clear",
    is_flag=True,
    help="Remove all flags of the engine.",
)
@wait_options("the change is in effect")
@dry_run_option
@pass_session
def update(
    session: Session,
    deployment: str | None,
    name: str | None,
    parameters: tuple[str, ...],
    engine_version: str | None,
    parameter_help: bool,
    search: str | None,
    clear: bool,
    wait: bool,
    wait_timeout: float,
    dry_run: bool,
) -> None:
    """Change a deployment's name or its engine.

    Only what is given changes; the flags of the engine are replaced as a whole. Replicas are
    replaced one after the other, each only when its successor answers.
    """
    if wants_parameter_help(parameter_help, search):
        print_parameter_help(session, engine_version, search)
        return
    if not deployment:
        raise UsageError(
            "<name-or-id> is required",
            hint="Run `exo dedicated-inference deployment update --help` for examples.",
        )
    given = tuple(split_parameters(parameters))
    if clear and given:
        raise UsageError(
            "--clear-inference-engine-params and --inference-engine-params were both given",
            hint="The latter replaces all flags anyway.",
        )
    options = UpdateOptions(
        deployment=deployment,
        name=name or None,
        parameters=given if given or clear else None,
        engine_version=engine_version or None,
        wait=wait,
        wait_seconds=wait_timeout,
        dry_run=dry_run,
    )
    run(session, options)


def run(session: Session, options: UpdateOptions) -> None:
    """Change the deployment, and wait until the change is in effect when asked to."""
    with session.connect() as client:
        found = client.deployments.find(options.deployment)
        with by_name(found):
            finish(
                session,
                client,
                f'Updating deployment "{options.deployment}"',
                lambda: client.deployments.update(
                    found.id,
                    name=options.name,
                    engine_parameters=options.parameters,
                    engine_version=options.engine_version,
                    dry_run=options.dry_run,
                ),
            )
        if options.dry_run:
            session.success("Deployment would be updated (dry run).")
            return
        session.success("Deployment updated.")
        if options.wait:
            name = options.name or found.name
            wait_for_deployment(session, client, name, found.id, options.wait_seconds)

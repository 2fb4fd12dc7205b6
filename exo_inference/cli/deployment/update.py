"""`deployment update`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from exo_inference.cli.completion.names import complete_deployments
from exo_inference.cli.deployment.engine_flags import (
    engine_options,
    print_parameter_help,
    split_parameters,
    wants_parameter_help,
)
from exo_inference.cli.deployment.flag_migration import migrated_flags, tell_changes
from exo_inference.cli.rendering.results import Answer, resulting, show_deployment
from exo_inference.cli.rendering.views import DEPLOYMENT
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.wait import wait_for_deployment, wait_options, wait_until_scaled
from exo_inference.cli.writes import by_name, dry_run_option, finish, override_option, titled
from exo_inference.engine_names import GPU_ENGINE
from exo_inference.errors import UsageError

if TYPE_CHECKING:
    from exo_inference.cli.plan.command_line import CommandLine
    from exo_inference.engines.migration import Change
    from exo_inference.resources.wanted import WantedDeployment
    from exo_inference.sdk import Client
    from exo_inference.wire import Deployment, DeploymentPlan, Operation


@dataclass(frozen=True)
class UpdateOptions:
    """What `deployment update` was asked to do; what is open in `wanted` stays as it is."""

    deployment: str
    wanted: WantedDeployment
    wait: bool
    wait_seconds: float
    dry_run: bool
    force: bool
    migrate: bool

    @property
    def asked(self) -> dict[str, object]:
        """What has to hold once it is in effect, by fields of `Deployment`."""
        flags = self.wanted.engine_parameters
        given = {
            "name": self.wanted.name,
            "inference_engine_parameters": None if flags is None else [*flags],
            "inference_engine_version": self.wanted.engine_version,
        }
        return {name: value for name, value in given.items() if value is not None}


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
            "Go to another version of the engine, and take the flags along",
            "exo ai deployment update chat --inference-engine-version 0.28.0 --migrate",
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
@click.option(
    "--migrate",
    is_flag=True,
    help="With another engine version: take the present flags there, rewritten where they have to be.",
)
@wait_options("the change is in effect")
@dry_run_option
@override_option
@pass_session
def update(
    session: Session,
    deployment: str | None,
    name: str | None,
    parameters: tuple[str, ...],
    engine_version: str | None,
    engine: str | None,
    parameter_help: bool,
    search: str | None,
    clear: bool,
    migrate: bool,
    wait: bool,
    wait_timeout: float,
    dry_run: bool,
    force: bool,
) -> None:
    """Change a deployment's name or its engine.

    Only what is given changes; the flags of the engine are replaced as a whole. Replicas are
    replaced one after the other, each only when its successor answers. Flags that do not exist in
    another version of the engine stop the change, unless `--migrate` is given.
    """
    # A list of flags is about no deployment, so it comes before one is asked for.
    if wants_parameter_help(parameter_help, search):
        print_parameter_help(session, engine_version, search, engine=engine)
        return
    if engine is not None:
        raise UsageError(
            "--inference-engine is for the list of flags here: the engine cannot be changed",
            hint="Create another deployment with it, and delete this one.",
        )
    if not deployment:
        raise UsageError(
            "<name-or-id> is required",
            hint="Run `exo dedicated-inference deployment update --help` for examples.",
        )
    _refuse_empty(name, engine_version)
    # Flags replace all that there are, so none given by mistake would remove them: only `clear` may.
    given = tuple(split_parameters(parameters))
    if clear and given:
        raise UsageError(
            "--clear-inference-engine-params and --inference-engine-params were both given",
            hint="The latter replaces all flags anyway.",
        )
    if parameters and not (given or clear or name or engine_version):
        raise UsageError(
            "--inference-engine-params is empty, so there is nothing to change",
            hint="Remove all flags of the engine with --clear-inference-engine-params.",
        )
    # Flags that are given are of the new version already; there is nothing left to migrate.
    if migrate and (given or clear or not engine_version):
        raise UsageError(
            "--migrate takes the present flags to another version of the engine",
            hint="Give it with --inference-engine-version, and without other flags.",
        )
    # Late, as pydantic takes its time: mistakes above are told at once.
    from exo_inference.resources.wanted import WantedDeployment

    options = UpdateOptions(
        deployment=deployment,
        wanted=WantedDeployment(
            name=name,
            engine_version=engine_version,
            engine_parameters=given if given or clear else None,
        ),
        wait=wait,
        wait_seconds=wait_timeout,
        dry_run=dry_run,
        force=force,
        migrate=migrate,
    )
    run(session, options)


def _refuse_empty(name: str | None, engine_version: str | None) -> None:
    """Refuse flags whose value is missing, as where a variable of a script is not set."""
    if name == "":
        raise UsageError("--name is empty", hint="A deployment keeps its name without this flag.")
    if engine_version == "":
        raise UsageError(
            "--inference-engine-version is empty",
            hint="Leave it out: the version stays as it is. "
            "`exo dedicated-inference deployment show` has it.",
        )


def run(session: Session, options: UpdateOptions) -> None:
    """Change the deployment, and wait until the change is in effect when asked to."""
    from exo_inference.cli.plan import notices

    output = notices.output_of(session, DEPLOYMENT, dry_run=options.dry_run)
    with session.connect() as client:
        found = client.deployments.find(options.deployment)
        changes: tuple[Change, ...] = ()
        wanted = options.wanted
        if wanted.engine_version is not None and wanted.engine_parameters is None:
            present = client.deployments.get(found.id)
            flags, changes = migrated_flags(
                session, present, wanted.engine_version, migrate=options.migrate
            )
            options = replace(options, wanted=replace(wanted, engine_parameters=flags))
            found = found.model_copy(update={"version": present.version})  # what they are made of
        operation = _send(session, client, found, options)
        plan = operation.plan or _plan_here(found, options.wanted)
        tell_changes(session, changes)
        if options.dry_run:
            outcome = Answer("deployment", found.id, found.name, "would be updated", dry_run=True)
            line_of = partial(_line, session, found, options.wanted)
            notices.conclude_dry_run(session, outcome, plan, line_of, found.replicas or 1)
            return
        session.success("Deployment updated.")
        if plan is not None:
            notices.tell(session, plan)
        name = wanted.name or found.name
        with (
            by_name(found),
            resulting(output, lambda: show_deployment(output, client.deployments.get(found.id))),
        ):
            if options.wait and found.replicas == 0:
                # No replica has to be replaced for it.
                limit, asked = options.wait_seconds, options.asked
                wait_until_scaled(session, client, found, limit, operation, asked=asked)
            elif options.wait:
                limit, asked = options.wait_seconds, options.asked
                wait_for_deployment(session, client, name, found.id, limit, operation, asked)


def _send(session: Session, client: Client, found: Deployment, options: UpdateOptions) -> Operation:
    from exo_inference.cli.plan import notices

    line_of = partial(_line, session, found, options.wanted)
    with notices.explaining(session, line_of, dry_run=options.dry_run), by_name(found):
        return finish(
            session,
            client,
            titled(f'Updating deployment "{options.deployment}"', dry_run=options.dry_run),
            lambda: client.deployments.update(
                found,
                name=options.wanted.name,
                engine_parameters=options.wanted.engine_parameters,
                engine_version=options.wanted.engine_version,
                dry_run=options.dry_run,
                force=options.force,
            ),
        )


def _plan_here(found: Deployment, wanted: WantedDeployment) -> DeploymentPlan | None:
    """Plan the new flags; without any, the present ones, which a list lacks, go on as they are."""
    if wanted.engine_parameters is None:
        return None
    from exo_inference.cli.plan.notices import plan_here

    gpus = replace(wanted, gpu_type=found.gpu_type, gpu_count=found.gpu_count)
    return plan_here(replace(gpus, model=found.model))


def _line(
    session: Session, found: Deployment, wanted: WantedDeployment, plan: DeploymentPlan
) -> CommandLine:
    from exo_inference.cli.plan.command_line import CommandLine

    version, given = wanted.engine_version, wanted.engine_parameters
    chosen = (("--inference-engine-version", version),) if version is not None else ()
    flags = plan.parameters if given is None else given
    return CommandLine(
        "update", found.name, chosen, tuple(flags), plan.engine_version, session.flags.to_paste,
        plan.engine or GPU_ENGINE,
    )  # fmt: skip

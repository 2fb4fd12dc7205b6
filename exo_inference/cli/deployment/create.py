"""`deployment create`."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from exo_inference.cli.completion.names import complete_gpu_types, complete_models
from exo_inference.cli.deployment.engine_flags import (
    engine_options,
    print_parameter_help,
    split_parameters,
    wants_parameter_help,
)
from exo_inference.cli.rendering.results import Answer, resulting, show_deployment
from exo_inference.cli.rendering.terminal import print_data
from exo_inference.cli.rendering.views import DEPLOYMENT
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.wait import wait_for_deployment, wait_options
from exo_inference.cli.writes import (
    MAX_REPLICAS,
    changed_id,
    dry_run_option,
    finish,
    override_option,
    titled,
)
from exo_inference.errors import UsageError

if TYPE_CHECKING:
    from exo_inference.cli.planning.command_line import CommandLine
    from exo_inference.sdk import Client
    from exo_inference.wire import DeploymentPlan, Operation

_HELP_HINT = "Run `exo dedicated-inference deployment create --help` for examples."


@dataclass(frozen=True)
class CreateOptions:
    """What `deployment create` was asked to do."""

    name: str
    gpu_type: str
    gpu_count: int
    replicas: int
    model_id: str | None
    model_name: str | None
    parameters: tuple[str, ...]
    engine: str | None
    engine_version: str | None
    wait: bool
    wait_seconds: float
    dry_run: bool
    force: bool


@command(
    "create",
    aliases=["add"],
    examples=[
        Example(
            "Serve a model on one GPU and wait until it answers",
            "exo ai deployment create chat --model-name Qwen/Qwen3-0.6B "
            "--gpu-type gpua5000 --gpu-count 1 --wait",
        ),
        Example(
            "Serve two replicas, with flags for the engine",
            "exo ai deployment create chat --model-name Qwen/Qwen3-0.6B --gpu-type gpua5000 "
            "--gpu-count 1 --replicas 2 --inference-engine-params '--max-model-len=8192'",
        ),
        Example(
            "See what it would take of the GPUs, and change nothing",
            "exo ai deployment create chat --model-name Qwen/Qwen3-0.6B "
            "--gpu-type gpua5000 --gpu-count 1 --dry-run",
        ),
        Example(
            "Write the manifest that `apply` takes",
            "exo ai deployment create chat --model-name Qwen/Qwen3-0.6B "
            "--gpu-type gpua5000 --gpu-count 1 --dry-run -O yaml > chat.yaml",
        ),
        Example(
            "Give its URL to a script",
            "exo ai deployment create chat --model-name Qwen/Qwen3-0.6B "
            "--gpu-type gpua5000 --gpu-count 1 --wait -O json | jq -r .deployment_url",
        ),
        Example(
            "See which flags the engine takes",
            "exo ai deployment create --inference-engine-parameter-help",
        ),
        Example(
            "See those of vLLM about one subject, without a control plane",
            "exo ai deployment create --inference-engine-parameter-help --inference-engine vllm "
            "--search context",
        ),
        Example(
            "Run the small model that comes with the program, without a GPU",
            "exo ai deployment add demo --model-name exo/tiny-chat --gpu-type cpu --gpu-count 1",
        ),
    ],
)
@click.argument("name", metavar="[<name>]", required=False)
@click.option(
    "--gpu-type",
    metavar="<family>",
    shell_complete=complete_gpu_types,
    help="GPU family, see `deployment instance-type`.",
)
@click.option("--gpu-count", metavar="<number>", type=int, help="GPUs for each replica.")
@click.option(
    "--replicas",
    metavar="<number>",
    type=click.IntRange(min=1),
    default=1,
    help=f"Engines that share the requests, 1 to {MAX_REPLICAS} (default 1). None at all is "
    "for later: `deployment scale <name> 0`.",
)
@click.option(
    "--model-name",
    metavar="<name>",
    shell_complete=complete_models,
    help="Name of the model to serve.",
)
@click.option("--model-id", metavar="<id>", help="Id of the model to serve.")
@engine_options
@wait_options("the deployment answers")
@dry_run_option
@override_option
@pass_session
def create(
    session: Session,
    name: str | None,
    gpu_type: str | None,
    gpu_count: int | None,
    replicas: int,
    model_name: str | None,
    model_id: str | None,
    parameters: tuple[str, ...],
    engine_version: str | None,
    engine: str | None,
    parameter_help: bool,
    search: str | None,
    wait: bool,
    wait_timeout: float,
    dry_run: bool,
    force: bool,
) -> None:
    """Serve a model behind a URL and an API key of its own.

    The model has to exist (`model create`), but need not be fetched yet. The command returns as
    soon as the deployment is accepted and recorded; `--wait` follows it until it answers, and ends
    with exit code 8 and the reason if it does not. What cannot fit into the GPUs' memory is refused,
    with what would; `--dry-run` shows the whole plan.
    """
    if wants_parameter_help(parameter_help, search):
        print_parameter_help(session, engine_version, search, engine=engine, gpu_type=gpu_type)
        return
    if not name:
        raise UsageError("<name> is required", hint=_HELP_HINT)
    if not gpu_type or gpu_count is None:
        raise UsageError("--gpu-type and --gpu-count are required", hint=_HELP_HINT)
    if not model_id and not model_name:
        raise UsageError("--model-name or --model-id is required", hint=_HELP_HINT)
    options = CreateOptions(
        name=name,
        gpu_type=gpu_type,
        gpu_count=gpu_count,
        replicas=replicas,
        model_id=checked_model_id(model_id) if model_id else None,
        model_name=model_name or None,
        parameters=tuple(split_parameters(parameters)),
        engine=engine,
        engine_version=engine_version or None,
        wait=wait,
        wait_seconds=wait_timeout,
        dry_run=dry_run,
        force=force,
    )
    run(session, options)


def run(session: Session, options: CreateOptions) -> None:
    """Create the deployment, and wait for it when asked to."""
    from exo_inference.cli.planning import notices

    output = notices.output_of(session, DEPLOYMENT, dry_run=options.dry_run)
    with session.connect() as client:
        operation = _send(session, client, options)
        plan = operation.plan or _plan_here(options)
        if options.dry_run and output.format == "yaml" and output.template is None:
            print_data(_manifest(options))
            session.remark("Deployment would be created (dry run).")
            return
        if options.dry_run:
            outcome = Answer("deployment", "", options.name, "would be created", dry_run=True)
            line_of = partial(_line, session, options)
            notices.conclude_dry_run(session, outcome, plan, line_of, options.replicas)
            return
        session.success("Deployment created.")
        if operation.message:
            session.remark(operation.message)
        if plan is not None:
            notices.tell(session, plan)
        if not options.wait and not output.is_for_programs:
            return
        made = changed_id(operation) or client.deployments.find(options.name).id
        with resulting(output, lambda: show_deployment(output, client.deployments.get(made))):
            if options.wait:
                wait_for_deployment(session, client, options.name, made, options.wait_seconds)


def _send(session: Session, client: Client, options: CreateOptions) -> Operation:
    from exo_inference.cli.planning import notices
    from exo_inference.wire import ModelRef

    line_of = partial(_line, session, options)
    with notices.explaining(session, line_of, dry_run=options.dry_run):
        return finish(
            session,
            client,
            titled(f'Creating deployment "{options.name}"', dry_run=options.dry_run),
            lambda: client.deployments.create(
                options.name,
                model=ModelRef(id=options.model_id, name=options.model_name),
                gpu_type=options.gpu_type,
                gpu_count=options.gpu_count,
                replicas=options.replicas,
                engine_parameters=options.parameters,
                engine=options.engine,
                engine_version=options.engine_version,
                dry_run=options.dry_run,
                force=options.force,
            ),
        )


def _manifest(options: CreateOptions) -> str:
    """Return what `apply` takes to create this deployment."""
    from exo_inference.cli.gitops.live import DEPLOYMENT_KIND, LiveObject

    engine = {"name": options.engine, "version": options.engine_version}
    spec: dict[str, Any] = {
        "model": options.model_name or options.model_id,
        "gpuType": options.gpu_type,
        "gpuCount": options.gpu_count,
        "replicas": options.replicas,
        "engine": {name: value for name, value in engine.items() if value is not None},
        "engineParameters": list(options.parameters),
    }
    given = {name: value for name, value in spec.items() if value not in ({}, [])}
    return LiveObject(DEPLOYMENT_KIND, options.name, "", given).manifest()


def _plan_here(options: CreateOptions) -> DeploymentPlan | None:
    from exo_inference.cli.planning.notices import plan_here

    return plan_here(
        options.model_name, options.gpu_type, options.gpu_count, options.parameters,
        options.engine_version, options.engine,
    )  # fmt: skip


def _line(session: Session, options: CreateOptions, plan: DeploymentPlan) -> CommandLine:
    from exo_inference.cli.planning.command import command_line
    from exo_inference.cli.planning.options import PlanOptions

    asked = PlanOptions(
        name=options.name,
        model_name=options.model_name,
        model_id=options.model_id,
        gpu_type=options.gpu_type,
        gpu_count=options.gpu_count,
        replicas=options.replicas,
        parameters=options.parameters,
        engine=options.engine,
        engine_version=options.engine_version,
    )
    return command_line(session, asked, plan)


def checked_model_id(text: str) -> str:
    """Return the id of `--model-id` in lower case, as the API has them.

    Raises:
        UsageError: it is none.
    """
    try:
        return str(uuid.UUID(text))
    except ValueError as exc:
        raise UsageError(
            f"--model-id is {text!r}, which is not a UUID",
            hint="To name a model by its name, use --model-name.",
        ) from exc

"""`deployment create`: options become one `WantedDeployment`, which is sent, and its answer shown.

It is imported when the verb is typed (`deployment/__init__.py`). Whether it can work is the control plane's to say; here only
what is missing is. The request is in `sdk/`, waiting in `cli/wait.py`, the plan's words in `cli/plan/`.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

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
    send_create,
    titled,
)
from exo_inference.errors import UsageError

if TYPE_CHECKING:
    from exo_inference.cli.plan.command_line import CommandLine
    from exo_inference.resources.wanted import WantedDeployment
    from exo_inference.wire import DeploymentPlan, ModelRef

_HELP_HINT = "Run `exo dedicated-inference deployment create --help` for examples."


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
    from exo_inference.resources.wanted import WantedDeployment

    wanted = WantedDeployment(
        name=name,
        model=asked_model(model_id, model_name),
        gpu_type=gpu_type,
        gpu_count=gpu_count,
        replicas=replicas,
        engine=engine,
        engine_version=engine_version or None,
        engine_parameters=tuple(split_parameters(parameters)) or None,
    )
    wait_seconds = wait_timeout if wait else None
    run(session, wanted, wait_seconds=wait_seconds, dry_run=dry_run, force=force)


def run(
    session: Session,
    wanted: WantedDeployment,
    *,
    wait_seconds: float | None,
    dry_run: bool,
    force: bool,
) -> None:
    """Create the deployment, and wait for it so long; None is not at all."""
    from exo_inference.cli.plan import notices

    assert wanted.name is not None, "the command checks it"
    output = notices.output_of(session, DEPLOYMENT, dry_run=dry_run)
    line_of = partial(_line, session, wanted)
    with session.connect() as client:
        with notices.explaining(session, line_of, dry_run=dry_run):
            operation = finish(
                session,
                client,
                titled(f'Creating deployment "{wanted.name}"', dry_run=dry_run),
                lambda: send_create(client, wanted, dry_run=dry_run, force=force),
            )
        plan = operation.plan or notices.plan_here(wanted)
        if dry_run and output.format == "yaml" and output.template is None:
            from exo_inference.resources import InferenceDeployment
            from exo_inference.resources.yaml import dump_manifest

            print_data(dump_manifest(InferenceDeployment.KIND, wanted.name, wanted.to_manifest()))
            session.remark("Deployment would be created (dry run).")
            return
        if dry_run:
            outcome = Answer("deployment", "", wanted.name, "would be created", dry_run=True)
            notices.conclude_dry_run(session, outcome, plan, line_of, wanted.replicas or 1)
            return
        session.success("Deployment created.")
        if operation.message:
            session.remark(operation.message)
        if plan is not None:
            notices.tell(session, plan)
        if wait_seconds is None and not output.is_for_programs:
            return
        made = changed_id(operation) or client.deployments.find(wanted.name).id
        with resulting(output, lambda: show_deployment(output, client.deployments.get(made))):
            if wait_seconds is not None:
                wait_for_deployment(session, client, wanted.name, made, wait_seconds)


def _line(session: Session, wanted: WantedDeployment, plan: DeploymentPlan) -> CommandLine:
    from exo_inference.cli.plan.command import command_line
    from exo_inference.cli.plan.options import PlanOptions

    return command_line(session, PlanOptions(wanted), plan)


def asked_model(model_id: str | None, name: str | None) -> ModelRef | None:
    """Return the model of `--model-id`, in lower case as the API has ids, and of `--model-name`.

    Raises:
        UsageError: the id is none.
    """
    from exo_inference.wire import ModelRef

    if not model_id:
        return ModelRef(name=name) if name else None
    try:
        return ModelRef(id=str(uuid.UUID(model_id)), name=name or None)
    except ValueError as exc:
        raise UsageError(
            f"--model-id is {model_id!r}, which is not a UUID",
            hint="To name a model by its name, use --model-name.",
        ) from exc

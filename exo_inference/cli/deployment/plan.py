"""`deployment plan`."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from exo_inference.cli.completion.names import complete_gpu_types, complete_models
from exo_inference.cli.deployment.create import asked_model
from exo_inference.cli.deployment.engine_flags import parameter_options, split_parameters
from exo_inference.cli.plan.options import ALL_FAMILIES, PlanOptions
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.engine_names import ENGINES
from exo_inference.errors import UsageError

_HELP_HINT = "Run `exo dedicated-inference deployment plan --help` for examples."


@command(
    "plan",
    examples=[
        Example(
            "See whether a model fits, what it would do, and what to change if it does not",
            "exo ai deployment plan --model-name mistralai/Ministral-3-8B-Instruct-2512 "
            "--gpu-type gpua5000 --gpu-count 1",
        ),
        Example(
            "Plan with flags for the engine, on a GPU by its common name",
            "exo ai deployment plan --model-name Qwen/Qwen3-8B --gpu-type H100 "
            "--inference-engine-params '--max-model-len=32768 --kv-cache-dtype=fp8'",
        ),
        Example(
            "Find the cheapest GPUs for a model",
            "exo ai deployment plan --model-name meta-llama/Llama-3.1-70B-Instruct --compare",
        ),
        Example(
            "Find the cheapest GPUs and replicas for a demand",
            "exo ai deployment plan --model-name Qwen/Qwen3-8B --for 'requests=20/s input=1000 output=300 itl<=40ms'",
        ),
        Example(
            "Show the arithmetic for a model on disk",
            "exo ai deployment plan --model ./my-model --gpu-type gpurtx6000pro --explain",
        ),
        Example(
            "Use a figure in a script",
            "exo ai deployment plan --model-name Qwen/Qwen3-8B --gpu-type L40S -O json "
            "| jq .kv_capacity_tokens",
        ),
    ],
)
@click.argument("name", metavar="[<name>]", required=False, default="")
@click.option(
    "--gpu-type",
    metavar="<gpu>",
    shell_complete=complete_gpu_types,
    help="GPU family, common name such as H100, one of --gpu-file, or cpu.",
)
@click.option(
    "--gpu-count",
    metavar="<number>",
    type=click.IntRange(1, 1024),
    help="GPUs for each replica (default 1).",
)
@click.option(
    "--replicas",
    metavar="<number>",
    type=click.IntRange(1, 10_000),
    default=1,
    help="Engines that share the requests, for the price (default 1).",
)
@click.option(
    "--model-name",
    metavar="<name>",
    shell_complete=complete_models,
    help="Name of the model to serve.",
)
@click.option("--model-id", metavar="<id>", help="Id of the model to serve; asks the API.")
@click.option(
    "--model",
    "model_path",
    metavar="<path>",
    type=click.Path(path_type=Path),
    help="Directory of a model, or its config.json, instead of a name.",
)
@parameter_options
@click.option(
    "--inference-engine",
    "engine",
    type=click.Choice(ENGINES),
    help="Engine to plan for (default vllm; exo for cpu).",
)
@click.option(
    "--gpu-file",
    metavar="<file>",
    type=click.Path(path_type=Path),
    help="TOML file that describes GPUs of your own.",
)
@click.option(
    "--compare",
    metavar="<gpus>",
    is_flag=False,
    flag_value=ALL_FAMILIES,
    help="Compare GPUs, separated by commas; without a value all families.",
)
@click.option(
    "--for",
    "demand",
    metavar="<demand>",
    help="Find the cheapest GPUs and replicas for a demand: 'requests=20/s input=1000 output=300 "
    "ttft<=500ms itl<=40ms', the limits only if wanted.",
)
@click.option("--explain", is_flag=True, help="Show the arithmetic with its sources.")
@click.option(
    "--measure",
    is_flag=True,
    help="With cpu: measure how fast this machine is first, and keep that for later plans.",
)
@click.option("--offline", is_flag=True, help="Ask neither the control plane nor the Hub.")
@pass_session
def plan(
    session: Session,
    name: str,
    gpu_type: str | None,
    gpu_count: int | None,
    replicas: int,
    model_name: str | None,
    model_id: str | None,
    model_path: Path | None,
    parameters: tuple[str, ...],
    engine_version: str | None,
    engine: str | None,
    gpu_file: Path | None,
    compare: str | None,
    demand: str | None,
    explain: bool,
    measure: bool,
    offline: bool,
) -> int:
    """Say whether a deployment would fit, and how fast and how dear it would be.

    Works offline for the models of the bundled catalogue and for models on disk; another name is
    looked up on the control plane and on the Hub. Nothing is created. Exits with 0 when it fits,
    with a warning when only just, and with 1 when it does not or nobody can say.
    """
    from exo_inference.resources.wanted import WantedDeployment

    if demand is not None:
        _check_demand(gpu_type, compare)
    wanted = WantedDeployment(
        name=name,
        model=asked_model(model_id, model_name),
        gpu_type=(gpu_type or None) if demand is None else None,
        gpu_count=gpu_count,
        replicas=replicas,
        engine=engine,
        engine_version=engine_version or None,
        engine_parameters=tuple(split_parameters(parameters)),
    )
    options = PlanOptions(
        wanted,
        model_path=model_path,
        gpu_file=gpu_file,
        compare=compare if demand is None else compare or gpu_type or ALL_FAMILIES,
        demand=demand,
        explain=explain,
        offline=offline,
        measure=measure,
    )
    _check(options)
    from exo_inference.cli.plan.command import run

    return run(session, options)


def _check_demand(gpu_type: str | None, compare: str | None) -> None:
    source = click.get_current_context().get_parameter_source("replicas")
    if source is not ParameterSource.DEFAULT:
        raise UsageError(
            "--for finds how many replicas hold the demand, so that --replicas says nothing",
            hint="Leave out one of them.",
        )
    if gpu_type and compare is not None:
        raise UsageError(
            "--for takes its GPUs from --gpu-type or from --compare, not from both",
            hint="For example --compare=H100,L4.",
        )


def _check(options: PlanOptions) -> None:
    from exo_inference.wire import ModelRef

    model = options.wanted.model or ModelRef()
    models = (model.name, model.id, options.model_path)
    if sum(model is not None for model in models) != 1:
        raise UsageError(
            "one of --model-name, --model and --model-id is required, and only one", hint=_HELP_HINT
        )
    if options.wanted.gpu_type is None and options.compare is None:
        raise UsageError("one of --gpu-type and --compare is required", hint=_HELP_HINT)
    if options.wanted.gpu_type is not None and options.compare is not None:
        raise UsageError("only one of --gpu-type and --compare may be given", hint=_HELP_HINT)
    if options.compare is not None and options.explain:
        raise UsageError("--explain is about one plan, not a comparison", hint=_HELP_HINT)
    if options.measure and "cpu" not in (
        options.wanted.gpu_type,
        *(options.compare or "").split(","),
    ):
        raise UsageError(
            "--measure is about this machine's processor", hint="Use it with --gpu-type cpu."
        )
    if model.id is not None and options.offline:
        raise UsageError(
            "--model-id is known to the control plane alone, which --offline leaves out",
            hint="Use --model-name or --model.",
        )

"""Who makes a plan: this process from what it knows of the model, or the control plane.

`find_planner` looks for the model in the order that needs least: a file, the bundled catalogue,
the control plane, the Hub.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from exo_inference.cli.plan import words
from exo_inference.cli.plan.options import PlanOptions
from exo_inference.cli.plan.times import TableTimes, Times
from exo_inference.cli.text_files import read_text_file
from exo_inference.engine_names import default_engine, facts_of
from exo_inference.engines import UnknownEngineRelease
from exo_inference.engines.flags.catalogue import is_listed, listed_releases
from exo_inference.engines.registry import engine_release
from exo_inference.errors import AuthenticationFailed, ExoError, HubError, UsageError
from exo_inference.host_memory import read_host_memory
from exo_inference.model_description import CONFIG_NAME
from exo_inference.planner import (
    Architecture,
    Gpu,
    Step,
    explain,
    find_draft,
    find_gpu,
    find_model,
    load_user_gpus,
)
from exo_inference.planner.speed.clock import clock_of
from exo_inference.preflight import Judgement, Subject, judge, read_draft_name, to_wire
from exo_inference.processor_speed import (
    BUSY_SHARE,
    MOST_SPREAD,
    ProcessorSpeed,
    machine_cpu,
    measure_speed,
    write_speed,
)
from exo_inference.resources.wanted import WantedDeployment
from exo_inference.settings import resolve_state_dir
from exo_inference.state_dir import StateDir
from exo_inference.wire import DeploymentPlan, ModelRef

if TYPE_CHECKING:
    from exo_inference.cli.session import Session

CPU = "cpu"


class Planner(Protocol):
    """Makes plans of one model with one set of flags."""

    @property
    def wanted(self) -> WantedDeployment:
        """What was asked of it, with the flags."""

    def plan(self, gpu_type: str, gpu_count: int, *, with_advice: bool) -> DeploymentPlan:
        """Plan one replica on these GPUs."""

    def steps(self, gpu_type: str, gpu_count: int) -> tuple[Step, ...]:
        """Return the arithmetic of that plan.

        Raises:
            UsageError: it cannot be shown here.
        """

    def times(self, plan: DeploymentPlan) -> Times:
        """Return how long prompts and steps take of one of its plans, whose speed is estimated."""


@dataclass(frozen=True)
class LocalPlanner:
    """Plans in this process.

    Attributes:
        extra: the user's own GPUs.
        state: may have a measurement of this machine.
        plans_unlisted: a release whose flags are not known is planned all the same; refused otherwise.
        judged: what was planned, by GPU and count, so that its arithmetic and times need no second plan.
    """

    model: Architecture
    wanted: WantedDeployment
    extra: Mapping[str, Gpu] = field(default_factory=dict)
    state: StateDir = field(default_factory=lambda: StateDir(resolve_state_dir()))
    plans_unlisted: bool = True
    judged: dict[tuple[str, int], Judgement] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def plan(self, gpu_type: str, gpu_count: int, *, with_advice: bool) -> DeploymentPlan:
        """Plan one replica on these GPUs."""
        judged = self._judge(gpu_type, gpu_count, with_advice=with_advice)
        self.judged[gpu_type, gpu_count] = judged
        return to_wire(judged)

    def steps(self, gpu_type: str, gpu_count: int) -> tuple[Step, ...]:
        """Return the arithmetic of that plan; nothing where the flags were refused."""
        judged = self._known(gpu_type, gpu_count)
        return explain(judged.plan) if judged.plan is not None else ()

    def times(self, plan: DeploymentPlan) -> Times:
        """Return how long prompts and steps of any size take."""
        judged = self._known(plan.gpu_type, plan.gpu_count)
        return clock_of(judged.plan) or TableTimes(plan)

    def _known(self, gpu_type: str, gpu_count: int) -> Judgement:
        """Return what was planned on these GPUs; of others, plan it."""
        found = self.judged.get((gpu_type, gpu_count))
        return found or self._judge(gpu_type, gpu_count, with_advice=False)

    def _judge(self, gpu_type: str, gpu_count: int, *, with_advice: bool) -> Judgement:
        wanted, engine = self.wanted, engine_for(self.wanted, gpu_type)
        _check_own_release(engine, wanted.engine_version)
        if gpu_type == CPU:  # of this machine, within the limit of the container
            gpu = machine_cpu(read_host_memory().total_bytes, self.state)
        else:
            gpu = find_gpu(gpu_type, extra=self.extra)
        subject = Subject(
            self.model,
            gpu,
            gpu_count,
            wanted.engine_parameters or (),
            engine=engine,
            engine_version=wanted.engine_version,
            draft=_draft(wanted, engine),
            plans_unlisted=self.plans_unlisted,
        )
        return judge(subject, with_advice=with_advice)


def _check_own_release(engine: str, version: str | None) -> None:
    """Check that the release asked of exo-engine is its own, or one of vLLM that it stands for.

    A deployment that has another already keeps it, so nobody else refuses one.

    Raises:
        UnknownEngineRelease: it is neither.
    """
    facts, own = facts_of(engine), engine_release(engine, None)
    if not facts.is_ours or version is None or version == own or is_listed(version):
        return
    listed = listed_releases()
    raise UnknownEngineRelease(
        f"{facts.title} {version[:64]} is not known, only {own}, which stands for vLLM "
        f"{listed[0]} to {listed[-1]} too",
        hint=f"Leave the version out, or name {own}.",
    )


@dataclass(frozen=True)
class RemotePlanner:
    """Has the control plane plan."""

    session: Session
    wanted: WantedDeployment

    def plan(self, gpu_type: str, gpu_count: int, *, with_advice: bool) -> DeploymentPlan:
        """Plan one replica on these GPUs."""
        wanted = self.wanted
        with self.session.connect() as client:
            return client.plan(
                model=wanted.model or ModelRef(),
                gpu_type=gpu_type,
                gpu_count=gpu_count,
                engine_parameters=wanted.engine_parameters or (),
                engine_version=wanted.engine_version,
                engine=wanted.engine,
                with_advice=with_advice,
            )

    def steps(self, gpu_type: str, gpu_count: int) -> tuple[Step, ...]:
        """Refuse: the control plane answers with figures alone."""
        raise UsageError(
            "--explain needs the model here, and only the control plane knows it",
            hint="Give its directory or config.json with --model.",
        )

    def times(self, plan: DeploymentPlan) -> Times:
        """Return how long prompts and steps take, by the table that the control plane sent."""
        return TableTimes(plan)


def state_of(session: Session) -> StateDir:
    """Return the directory of this machine's control plane, there or not; of another one's account, the default."""
    from exo_inference.cli.control_plane.launch import state_dir_of

    try:
        return state_dir_of(session)
    except UsageError:  # the file of -C is an account elsewhere
        return StateDir(resolve_state_dir())


def measure_processor(session: Session, planner: Planner) -> None:
    """Measure this machine, keep that for the planner's plans and later ones, and say what it is.

    Raises:
        UsageError: the planner is a control plane elsewhere, which plans for its own machine.
        ExoError: the engine is not installed, or failed.
    """
    if isinstance(planner, RemotePlanner) and not _is_here(session):
        raise UsageError(
            f"--measure is about this machine, but {session.settings.endpoint} makes this plan",
            hint="Use it with --model or with a --model-name that is known here, or on that machine.",
        )
    session.remark("measuring this machine for some seconds ...")
    speed = measure_speed()
    rates = ", ".join(f"{rate / 1e9:,.0f} in {kind}" for kind, rate in speed.operations.items())
    session.remark(
        f"{speed.processor}: {speed.read_bytes / 1e9:.1f} GB/s of weights; products in GFLOP/s: {rates} "
        f"({speed.threads} thread{'s' * (speed.threads != 1)}, {speed.kernels})"
    )
    doubt = _doubt(speed)
    if doubt:
        session.remark(
            f"warning: that is not kept: {doubt}. Measure again when the machine is idle"
        )
        return
    write_speed(state_of(session), speed)


def _is_here(session: Session) -> bool:
    """Say whether the account is that of this machine's control plane."""
    file = session.settings.config_file
    return file is not None and file.absolute().parent == state_of(session).root.absolute()


def _doubt(speed: ProcessorSpeed) -> str:
    """Return why this is not the machine's speed; empty: it is."""
    if speed.others > BUSY_SHARE:
        return f"other processes used {speed.others:.0%} of a core meanwhile"
    if speed.spread > MOST_SPREAD:
        return f"equal work took {speed.spread:.0%} longer at the median than at best"
    return ""


def find_planner(session: Session, options: PlanOptions) -> Planner:
    """Return who can plan the model that was asked for.

    Raises:
        UsageError: nobody knows the model, or a file cannot be read.
    """
    extra = read_gpu_file(options.gpu_file) if options.gpu_file is not None else {}
    if options.model_path is not None:
        return LocalPlanner(
            read_model_files(options.model_path), options.wanted, extra, state_of(session)
        )
    name = None if options.wanted.model is None else options.wanted.model.name
    if name is None:
        return RemotePlanner(session, options.wanted)
    try:
        return LocalPlanner(find_model(name), options.wanted, extra, state_of(session))
    except UsageError as unknown:
        if options.offline:
            raise _nowhere(unknown, []) from unknown
        return _find_online(session, options.wanted, name, extra, unknown)


def read_model_files(path: Path) -> Architecture:
    """Return the model in a directory, or the one that a config.json describes.

    Damaged files are refused with their names, so that no plan is made of half a model.

    Raises:
        UsageError: there is nothing, or something in it cannot be read.
    """
    from exo_inference import foreign_files
    from exo_inference.foreign_files import ForeignFileError, ReadingFailed

    if not path.exists():
        raise UsageError(
            f"--model: {path} does not exist, expected a directory or a config.json",
            hint="To plan a model by its name, use --model-name.",
        )
    if path.is_dir() and not (path / CONFIG_NAME).is_file():
        raise UsageError(
            f"--model: there is no config.json in {path}",
            hint="Give the directory that the model was saved in, or its config.json.",
        )
    try:
        return foreign_files.describe_model(path, is_strict=True)
    except (ForeignFileError, ReadingFailed) as error:
        raise UsageError(
            f"--model: {error.message}",
            hint="Mend or fetch that file again; a config.json alone can be planned as well.",
        ) from error


def _find_online(
    session: Session,
    wanted: WantedDeployment,
    name: str,
    extra: Mapping[str, Gpu],
    unknown: UsageError,
) -> Planner:
    tried: list[str] = []
    remote = RemotePlanner(session, wanted)
    try:
        # What the user described is not known there, so any family will do to ask about the model.
        answer = remote.plan("gpua5000", 1, with_advice=False)
        if answer.model:
            return remote
        tried.append(f"control plane: {'; '.join(words.reasons(answer))}")
    except AuthenticationFailed:
        raise
    except ExoError as error:
        tried.append(f"control plane: {error.message}")
    try:
        model = _from_hub(name, quiet=session.quiet)
        return LocalPlanner(model, wanted, extra, state_of(session))
    except ExoError as error:
        tried.append(f"Hub: {error.message}")
    raise _nowhere(unknown, tried) from unknown


def _from_hub(name: str, *, quiet: bool) -> Architecture:
    if find_spec("huggingface_hub") is None:
        raise HubError("huggingface_hub is not installed")
    from exo_inference.cli.rendering.progress import step
    from exo_inference.hub.architecture import fetch_architecture
    from exo_inference.settings import read_hub_token

    with step(f'Reading the description of "{name}" from the Hub', quiet=quiet):
        return asyncio.run(fetch_architecture(name, token=read_hub_token()))


def _nowhere(unknown: UsageError, tried: list[str]) -> UsageError:
    text = "\n".join([unknown.message, *(f"  - {each}" for each in tried)])
    hint = unknown.hint or ""
    other = "Or give its directory or config.json with --model."
    return UsageError(text, hint=hint if "config.json" in hint else f"{hint} {other}".strip())


def engine_for(wanted: WantedDeployment, gpu_type: str) -> str:
    """Return the engine that is planned for."""
    return wanted.engine or default_engine(gpu_type)


def _draft(wanted: WantedDeployment, engine: str) -> Architecture | None:
    flags = wanted.engine_parameters or ()
    return find_draft(read_draft_name(flags, engine, wanted.engine_version))


def read_gpu_file(path: Path) -> Mapping[str, Gpu]:
    """Return the GPUs that a user described.

    Raises:
        UsageError: the file cannot be read or is not of its form.
    """
    return load_user_gpus(read_text_file("--gpu-file", path, max_mib=1))

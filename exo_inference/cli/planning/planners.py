"""Who makes a plan, from what is known of the model: a file, or the bundled catalogue."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from exo_inference.cli.planning.asking import PlanOptions
from exo_inference.errors import UsageError
from exo_inference.planner import (
    Architecture,
    EngineParameters,
    Gpu,
    Step,
    cpu_as_gpu,
    explain,
    find_gpu,
    find_model,
    load_user_gpus,
)
from exo_inference.preflight import Judgement, Subject, judge, to_wire
from exo_inference.wire import DeploymentPlan

CPU = "cpu"
_MAX_GPU_FILE_BYTES = 2**20


class Planner(Protocol):
    """Makes plans of one model with one set of flags."""

    def plan(self, gpu_type: str, gpu_count: int, *, with_advice: bool) -> DeploymentPlan:
        """Plan one replica on these GPUs."""

    def steps(self, gpu_type: str, gpu_count: int) -> tuple[Step, ...]:
        """Return the arithmetic of that plan.

        Raises:
            UsageError: it cannot be shown here.
        """


@dataclass(frozen=True)
class LocalPlanner:
    """Plans in this process. `extra` are the user's own GPUs."""

    model: Architecture
    options: PlanOptions
    extra: Mapping[str, Gpu] = field(default_factory=dict)

    def plan(self, gpu_type: str, gpu_count: int, *, with_advice: bool) -> DeploymentPlan:
        """Plan one replica on these GPUs."""
        return to_wire(self._judge(gpu_type, gpu_count, with_advice=with_advice))

    def steps(self, gpu_type: str, gpu_count: int) -> tuple[Step, ...]:
        """Return the arithmetic of that plan; nothing where the flags were refused."""
        judged = self._judge(gpu_type, gpu_count, with_advice=False)
        return explain(judged.plan) if judged.plan is not None else ()

    def _judge(self, gpu_type: str, gpu_count: int, *, with_advice: bool) -> Judgement:
        options = self.options
        gpu = this_cpu() if gpu_type == CPU else find_gpu(gpu_type, extra=self.extra)
        subject = Subject(
            self.model,
            gpu,
            gpu_count,
            options.parameters,
            engine=options.engine_for(gpu_type),
            engine_version=options.engine_version,
            draft=find_draft(options.parameters),
        )
        return judge(subject, with_advice=with_advice)


def find_planner(options: PlanOptions) -> Planner:
    """Return who can plan the model that was asked for.

    Raises:
        UsageError: nobody knows the model, or a file cannot be read.
    """
    extra = read_gpu_file(options.gpu_file) if options.gpu_file is not None else {}
    if options.model_path is not None:
        from exo_inference.cli.planning.model_files import read_model

        return LocalPlanner(read_model(options.model_path), options, extra)
    if options.model_name is None:
        raise UsageError(
            "--model-id is known to the control plane alone, which is not asked for plans",
            hint="Use --model-name or --model.",
        )
    return LocalPlanner(find_model(options.model_name), options, extra)


def find_draft(flags: tuple[str, ...]) -> Architecture | None:
    """Return the draft model that the flags name, where the catalogue has it."""
    try:
        name = EngineParameters.parse(flags).speculative.get("model")
        return find_model(name) if isinstance(name, str) else None
    except UsageError:  # the flags are judged elsewhere; an unknown draft is a note of the plan
        return None


def this_cpu() -> Gpu:
    """Return this machine's CPU with its memory."""
    return cpu_as_gpu(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def read_gpu_file(path: Path) -> Mapping[str, Gpu]:
    """Return the GPUs that a user described.

    Raises:
        UsageError: the file cannot be read or is not of its form.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_GPU_FILE_BYTES + 1)
        if len(data) > _MAX_GPU_FILE_BYTES:
            raise UsageError(f"--gpu-file: {path} is larger than 1 MiB")
        text = data.decode("utf-8")
    except OSError as exc:
        raise UsageError(f"--gpu-file: cannot read {path}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"--gpu-file: {path} is not text") from exc
    return load_user_gpus(text)

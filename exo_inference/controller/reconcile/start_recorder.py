"""Records, for each real start of a replica, what was predicted and what the engine measured.

The deployments' reconciler tells which replicas it found ready; one background task of the
reconciler asks each run of a replica once and appends to the log. Simulated starts, and those of
engines that measure nothing, leave no trace. Nothing here may hold up or fail a reconciliation.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import ValidationError

from exo_inference.controller.admission.fit import draft_name_of, judge_fit
from exo_inference.controller.context import Context
from exo_inference.controller.stores.start_log import Starts
from exo_inference.engines.registry import engine_release
from exo_inference.errors import ExoError
from exo_inference.platforms.base import InstanceTypeInfo, ObservedDeployment, ReplicaPhase
from exo_inference.resources import DeploymentSpec, InferenceDeployment, InferenceModel
from exo_inference.wire import (
    DeploymentPlan,
    ModelRef,
    PlanStart,
    StartMeasurements,
    StartPrediction,
)
from exo_inference.wire.base import format_time

logger = logging.getLogger(__name__)

_MAX_WAITING = 256


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a replica that became ready, and what it was started from."""

    deployment: InferenceDeployment
    replica: str
    started_at: datetime

    @property
    def id(self) -> str:
        """The same for a run whoever looks at it, so that a restarted controller knows it."""
        owner = uuid.UUID(self.deployment.metadata.uid)
        return str(uuid.uuid5(owner, f"{self.replica} {format_time(self.started_at)}"))


class StartRecorder:
    """Owns the queue of runs to ask. One object per reconciler."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._log = context.starts
        self._waiting: asyncio.Queue[_Run] = asyncio.Queue(_MAX_WAITING)
        self._noticed: dict[str, set[str]] = {}

    def notice(self, deployment: InferenceDeployment, observed: ObservedDeployment) -> None:
        """Queue the runs that are ready and were not seen so before. Never waits."""
        runs = {
            run.id: run
            for replica in observed.replicas
            if replica.phase is ReplicaPhase.READY and replica.current and replica.started_at
            for run in [_Run(deployment, replica.name, replica.started_at)]
        }
        uid = deployment.metadata.uid
        noticed = self._noticed.get(uid, set())
        self._noticed[uid] = noticed & runs.keys()
        for key in runs.keys() - noticed:
            if not self._waiting.full():  # else the next look queues it
                self._waiting.put_nowait(runs[key])
                self._noticed[uid].add(key)

    def forget(self, uid: str) -> None:
        """Drop what is kept of a deployment that is gone."""
        self._noticed.pop(uid, None)

    async def run(self) -> None:
        """Ask and record until cancelled.

        The log alone says what is recorded: a run can be noticed again, as when its replica was not ready for a
        while or an update was taken back, and another controller may have recorded it meanwhile.
        """
        while True:
            run = await self._waiting.get()
            try:
                if run.id not in {start.id for start in await self._log.read()}:
                    await self._record(run, self._log)
            except ExoError as exc:
                logger.warning("the start of %s is not recorded: %s", run.replica, exc.message)
            except Exception:
                logger.exception("the start of %s is not recorded", run.replica)

    async def _record(self, run: _Run, log: Starts) -> None:
        said = await self._context.platform.measurements(run.replica)
        if said is None:
            return
        try:
            measured = StartMeasurements.model_validate(said)
        except ValidationError as exc:
            count = exc.error_count()
            logger.warning("%s: %d of its measurements make no sense", run.replica, count)
            return
        if measured.simulated or measured.weights_bytes is None:
            return
        families = await self._context.families()
        flags = _flags_in_effect(run.deployment.spec, families, measured)
        plan = await self._plan(run.deployment, flags, families)
        await log.append(_describe(run, flags, plan, measured))
        logger.info("recorded the start of replica %s", run.replica)

    async def _plan(
        self,
        deployment: InferenceDeployment,
        flags: tuple[str, ...],
        families: Sequence[InstanceTypeInfo],
    ) -> DeploymentPlan | None:
        """Plan the deployment as admission does; None where it cannot be judged."""
        spec = deployment.spec.model_copy(update={"engine_parameters": flags})
        models = await self._context.store.list(InferenceModel)
        ref = ModelRef(name=spec.model)
        known = await self._context.look_up(ref, draft_name_of(spec), models)
        try:
            # What is running was admitted: nothing is refused, and nobody wants advice.
            fit = await asyncio.to_thread(judge_fit, spec, families, known, force=True)
        except ExoError as exc:
            logger.info("%s was not planned: %s", spec.model, exc.message)
            return None
        return fit.plan


def _flags_in_effect(
    spec: DeploymentSpec, families: Sequence[InstanceTypeInfo], measured: StartMeasurements
) -> tuple[str, ...]:
    """Return the flags that a replica runs with: on a shared machine the platform sizes the cache."""
    is_given = any(each.family == spec.gpu_type == "cpu" and each.room for each in families)
    if not is_given or not measured.available_kv_bytes:
        return spec.engine_parameters
    # Before the user's own, as in the command line: theirs win.
    return (f"--kv-cache-memory-bytes={measured.available_kv_bytes}", *spec.engine_parameters)


def _describe(
    run: _Run,
    flags: tuple[str, ...],
    plan: DeploymentPlan | None,
    measured: StartMeasurements,
) -> PlanStart:
    spec = run.deployment.spec
    return PlanStart(
        id=run.id,
        deployment=run.deployment.metadata.name,
        replica=run.replica,
        started_at=format_time(run.started_at.astimezone(UTC)),
        engine=spec.engine.name or "",
        engine_version=engine_release(spec.engine.name, spec.engine.version),
        model=spec.model,
        gpu=(plan.gpu if plan is not None else "") or spec.gpu_type,
        gpu_type=spec.gpu_type,
        gpu_count=spec.gpu_count,
        flags=list(flags),
        predicted=_figures(plan),
        measured=measured,
    )


def _figures(plan: DeploymentPlan | None) -> StartPrediction | None:
    """Return the figures of a plan; None where it has none."""
    if plan is None or not plan.total_bytes_per_gpu:
        return None
    names = StartPrediction.model_fields.keys() - {"components"}
    return StartPrediction(
        **{name: getattr(plan, name) for name in names},
        components={each.name: each.num_bytes for each in plan.components},
    )

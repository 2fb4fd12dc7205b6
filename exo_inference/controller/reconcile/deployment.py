"""Bringing one deployment from what is to what was asked: load, decide, execute, write status.

The reconciler's workers call `reconcile`, one at a time per deployment. It may be killed at any
line: everything it knows is in the store, on the platform or in the routing table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from exo_inference.controller import conditions
from exo_inference.controller.reconcile import decision, rollback
from exo_inference.controller.reconcile.adoption import adopt_deployment, choose_engine
from exo_inference.controller.reconcile.late_admission import LateAdmission
from exo_inference.controller.reconcile.outcome import TEARDOWN_CHECK_SECONDS, Outcome, adopted_uid
from exo_inference.controller.reconcile.start_recorder import StartRecorder
from exo_inference.controller.routing import Routing
from exo_inference.controller.secret_box import KEY_SECRET, SecretBox, hash_api_key
from exo_inference.controller.stores.base import (
    NewEvent,
    ObjectNotFound,
    Recording,
    Store,
    VersionConflict,
)
from exo_inference.errors import PlatformError
from exo_inference.platforms.base import (
    DesiredDeployment,
    ObservedDeployment,
    Platform,
    ReplicaPhase,
)
from exo_inference.resources import (
    DEPLOYMENT_FINALIZER,
    Condition,
    DeploymentStatus,
    InferenceApiKey,
    InferenceDeployment,
    InferenceModel,
    find_condition,
    model_object_name,
)
from exo_inference.resources.settled_spec import read_refusal, spec_before, with_spec_before
from exo_inference.resources.states import awaits_replicas, deployment_state, files_state
from exo_inference.wire import ModelState, Route, RouteKey, RouteReplica

UNROUTE_CHECK_SECONDS = 0.1
"""How soon to look again while the gateway has to let go of a replica."""

BLOCKED_REASON = "PlatformBusy"


class DeploymentReconciler:
    """Reconciles deployments.

    Args:
        gateway_url: deployment URLs begin with it.
        starts: told of every observation.
        judge: judges what came past the API; None where nothing can.
    """

    def __init__(
        self,
        store: Store,
        platform: Platform,
        routing: Routing,
        secret_box: SecretBox,
        gateway_url: str,
        starts: StartRecorder,
        judge: LateAdmission | None = None,
    ) -> None:
        self._store = store
        self._platform = platform
        self._routing = routing
        self._secret_box = secret_box
        self._gateway_url = gateway_url
        self._starts = starts
        self._judge = judge
        self._key_hashes: dict[str, str] = {}
        self._held: set[str] = set()
        self._written: dict[str, DeploymentStatus] = {}

    @property
    def held(self) -> frozenset[str]:
        """The uids of deployments that no look has found good yet: refused, not placed, or being judged."""
        return frozenset(self._held)

    def is_foreign(self, deployment: InferenceDeployment) -> bool:
        """Whether somebody else wrote the status after this process did: it is put right then."""
        written = self._written.get(deployment.metadata.uid)
        return written is not None and _essence(written) != _essence(deployment.status)

    async def reconcile(self, uid: str) -> Outcome:
        """Take the next step for one deployment, or for what is left of one nobody knows."""
        try:
            deployment = await self._store.get(InferenceDeployment, uid)
        except ObjectNotFound:  # one that only cannot be read is another error
            return await self._tear_down(uid)
        if deployment.metadata.deletion_timestamp is None:
            if deployment.metadata.uid_problem is not None:
                return await self._refuse_uid(deployment, *deployment.metadata.uid_problem)
            try:
                deployment = await self._adopt(deployment)
            except (VersionConflict, ObjectNotFound):
                return Outcome(again_after_seconds=0.0)
        model = await self._find_model(deployment)
        names = [replica.name for replica in deployment.status.replicas]
        unrouted = await self._routing.unrouted(names)
        action = decision.decide(deployment, model, unrouted=unrouted)
        if isinstance(action, decision.TearDown):
            return await self._finish(deployment)
        # Until it is found good: a node that comes during this look must not be missed.
        self._held.add(uid)
        if model is not None and (refusal := await self._find_refusal(deployment, model)):
            return await self._hold(deployment, decision.refused_conditions(deployment, refusal))
        before = await self._find_before(deployment, unrouted)
        if isinstance(action, decision.Hold):
            self._held.discard(uid)
            kept = None if self._platform.rolls_back else before
            return await self._hold(deployment, action.conditions, kept)
        if deployment.spec.engine.name is None:  # its GPUs came during this look
            return Outcome(failed=True)
        try:
            observed, refusal = await self._apply(deployment, action.desired, before)
        except PlatformError as exc:
            return await self._write_blocked(deployment, exc)
        self._held.discard(uid)
        assessment = decision.assess_deployment(deployment, observed)
        outcome = await self._write(
            deployment, assessment.conditions, observed, assessment.events, refusal
        )
        draining = any(r.phase == ReplicaPhase.DRAINING for r in observed.replicas)
        again = observed.next_check_seconds
        if draining and self._routing.must_let_go and outcome.again_after_seconds is None:
            again = min(again, UNROUTE_CHECK_SECONDS)
        if outcome.again_after_seconds is not None:
            again = outcome.again_after_seconds
        return Outcome(again_after_seconds=again, changed=outcome.changed)

    async def _apply(
        self,
        deployment: InferenceDeployment,
        desired: DesiredDeployment,
        before: DesiredDeployment | None,
    ) -> tuple[ObservedDeployment, str]:
        """Have the platform take its next step; return what it saw, and why `desired` is refused.

        Raises:
            PlatformError: no step can be taken now.
        """
        refusal = read_refusal(deployment) if before is not None else ""
        if self._platform.rolls_back:
            desired = replace(desired, before=before, refusal=refusal)
            observed = await self._platform.apply(desired)
            self._starts.notice(deployment, observed)
            return observed, observed.refusal
        if before is not None and refusal:
            observed = await self._platform.apply(before)
            return rollback.as_rolled_back(observed, refusal), refusal
        observed = await self._platform.apply(desired)
        self._starts.notice(deployment, observed)
        if before is not None and (reason := rollback.find_failed_change(deployment, observed)):
            return replace(observed, next_check_seconds=0.0), reason
        return observed, ""

    async def _adopt(self, deployment: InferenceDeployment) -> InferenceDeployment:
        """Give a deployment what the API would have given it."""
        if deployment.metadata.uid not in self._key_hashes:
            deployment = await adopt_deployment(self._store, self._secret_box, deployment)
        if deployment.spec.engine.name is None:
            families = await self._platform.instance_types()
            deployment = await choose_engine(self._store, deployment, families)
        return deployment

    async def _refuse_uid(
        self, deployment: InferenceDeployment, reason: str, message: str
    ) -> Outcome:
        """Say why an object is not known by the id that it asks for; nothing else of it is touched."""
        found = decision.refused_conditions(deployment, message, reason)
        events = conditions.changes(deployment.status.conditions, found)
        return await self._write_conditions(deployment, found, events)

    async def _find_before(
        self, deployment: InferenceDeployment, unrouted: frozenset[str]
    ) -> DesiredDeployment | None:
        """Return what was in effect before the present specification, if it can be so again."""
        spec = spec_before(deployment)
        if spec is None:
            return None
        then = with_spec_before(deployment, spec)
        action = decision.decide(then, await self._find_model(then), unrouted=unrouted)
        return action.desired if isinstance(action, decision.Apply) else None

    async def _hold(
        self,
        deployment: InferenceDeployment,
        found: Sequence[Condition],
        before: DesiredDeployment | None = None,
    ) -> Outcome:
        """Write why nothing is started; replicas that are there serve on, and are looked after."""
        if before is not None and deployment.status.replicas:
            try:
                observed = await self._platform.apply(before)
            except PlatformError as exc:
                return await self._write_blocked(deployment, exc)
            beside = decision.held_beside(found, observed, before.spec.replicas)
            outcome = await self._write(deployment, beside, observed)
            again = outcome.again_after_seconds
            return replace(
                outcome, again_after_seconds=observed.next_check_seconds if again is None else again
            )
        if deployment.status.replicas:
            return await self._write_conditions(deployment, found, ())
        return await self._write(deployment, found, None)

    async def _write(
        self,
        deployment: InferenceDeployment,
        found: Sequence[Condition],
        observed: ObservedDeployment | None,
        events: Sequence[NewEvent] = (),
        refusal: str = "",
    ) -> Outcome:
        """Write the route, then the status: what is called ready must be reachable."""
        old = deployment.status
        metadata = deployment.metadata
        merged = _merge(deployment, found)
        replicas = () if observed is None else observed.replicas
        ready = sum(replica.phase == ReplicaPhase.READY for replica in replicas)
        status = DeploymentStatus(
            conditions=merged,
            observed_generation=metadata.generation,
            observed_restart=deployment.restart,
            replicas=tuple(
                decision.to_state(replica, deployment.spec.model) for replica in replicas
            ),
            current_replicas=len(replicas),
            ready_replicas=ready,
            autoscaled_replicas=None if observed is None else observed.autoscaled,
            selector=old.selector if observed is None else observed.selector,
            url=f"{self._gateway_url}/{metadata.uid}/v1",
            key_sha256=await self._key_hash(deployment),
            admitted_spec=self._admitted_spec(deployment),
            uid=metadata.uid,
            release=(observed and observed.release) or old.release,
            **rollback.remember(deployment, found, refusal),
        )
        wanted = deployment.model_copy(update={"status": status})
        await self._write_route(wanted, observed)
        if ready > old.ready_replicas:
            await self._routing.wait_until_applied()
        told = [entry for entry in merged if entry.type != "Ready"]  # it says nothing of its own
        all_events = (*events, *conditions.changes(old.conditions, told))
        return await self._write_status(deployment, wanted, all_events)

    async def _write_blocked(self, deployment: InferenceDeployment, exc: PlatformError) -> Outcome:
        """Say why no step can be taken now; replicas and route stay as they were."""
        found = decision.blocked_conditions(deployment.status.conditions, exc.text)
        before = find_condition(deployment.status.conditions, "Progressing")
        is_news = before is None or before.message != exc.text
        events = (NewEvent("Warning", BLOCKED_REASON, exc.text),) if is_news else ()
        if not self._routing.has_route(deployment.metadata.uid):
            await self._write_route(deployment, None)
        outcome = await self._write_conditions(deployment, found, events)
        return Outcome(failed=True, changed=outcome.changed)

    async def _write_conditions(
        self,
        deployment: InferenceDeployment,
        found: Sequence[Condition],
        events: Sequence[NewEvent],
    ) -> Outcome:
        """Write conditions alone; what was observed stays as it was."""
        generation = deployment.metadata.generation
        update = {
            "conditions": _merge(deployment, found),
            "observed_generation": generation,
            "observed_restart": deployment.restart,
            "key_sha256": await self._key_hash(deployment),
            "admitted_spec": self._admitted_spec(deployment),
            "uid": adopted_uid(deployment),
        }
        status = deployment.status.model_copy(update=update)
        wanted = deployment.model_copy(update={"status": status})
        return await self._write_status(deployment, wanted, events)

    async def _write_status(
        self,
        before: InferenceDeployment,
        wanted: InferenceDeployment,
        events: Sequence[NewEvent],
    ) -> Outcome:
        self._written[wanted.metadata.uid] = wanted.status
        if wanted.status == before.status and not events:
            return Outcome()
        try:
            await self._store.update_status(wanted, Recording(events=events))
        except (VersionConflict, ObjectNotFound):  # it changed, or went, meanwhile: read it again
            return Outcome(again_after_seconds=0.0)
        return Outcome(changed=True)

    async def _write_route(
        self, deployment: InferenceDeployment, observed: ObservedDeployment | None
    ) -> None:
        metadata = deployment.metadata
        state, details = deployment_state(deployment)
        ready = [
            RouteReplica(
                name=replica.name, address=replica.address, models=list(replica.models) or None
            )
            for replica in (observed.replicas if observed is not None else ())
            if replica.phase == ReplicaPhase.READY and replica.address is not None
        ]
        draining = observed and [
            replica.name for replica in observed.replicas if replica.phase == ReplicaPhase.DRAINING
        ]
        await self._routing.set_route(
            Route(
                deployment_id=metadata.uid,
                name=metadata.name,
                model=deployment.spec.model,
                state=state.value,
                state_details=details,
                keys=await self._route_keys(deployment),
                replicas=ready,
                draining=draining,
                coming=awaits_replicas(deployment) or decision.is_restarting(observed),
                coming_models=tuple(decision.coming_models(observed)),
            )
        )

    async def _route_keys(self, deployment: InferenceDeployment) -> list[RouteKey]:
        uid, own = deployment.metadata.uid, await self._key_hash(deployment)
        scoped = await self._store.list(InferenceApiKey)
        keys = [route_key(key) for key in scoped if key.spec.scope == uid]
        return [RouteKey(id=uid, sha256=own), *keys] if own else keys

    async def _key_hash(self, deployment: InferenceDeployment) -> str:
        """Return the hash of a deployment's own key; empty if it has none.

        Of a key that was deleted the status has it.
        """
        uid = deployment.metadata.uid
        if uid not in self._key_hashes:
            sealed = await self._store.get_secret(uid, KEY_SECRET)
            if sealed is None:
                is_known = deployment.metadata.uid_problem is None
                return deployment.status.key_sha256 if is_known else ""
            value = self._secret_box.decrypt(sealed, owner=uid, name=KEY_SECRET)
            self._key_hashes[uid] = hash_api_key(value)
        return self._key_hashes[uid]

    async def _find_refusal(self, deployment: InferenceDeployment, model: InferenceModel) -> str:
        """Return why a specification that came past the API cannot be; empty if it can."""
        is_going = deployment.metadata.deletion_timestamp is not None
        # A model that cannot be used is told of as such.
        if self._judge is None or is_going or files_state(model)[0] == ModelState.ERROR:
            return ""
        return await self._judge.find_refusal(deployment)

    def _admitted_spec(self, deployment: InferenceDeployment) -> str:
        return "" if self._judge is None else self._judge.admitted_spec(deployment)

    async def _find_model(self, deployment: InferenceDeployment) -> InferenceModel | None:
        name = model_object_name(deployment.spec.model)
        try:
            return await self._store.get_by_name(InferenceModel, name)
        except ObjectNotFound:
            return None

    async def _tear_down(self, uid: str) -> Outcome:
        """Remove routes, then replicas; the gateway must have let go before a replica is stopped."""
        await self._routing.remove_route(uid)
        if not await self._routing.is_unrouted(uid):
            return Outcome(again_after_seconds=UNROUTE_CHECK_SECONDS)
        if not await self._platform.delete(uid):
            return Outcome(again_after_seconds=TEARDOWN_CHECK_SECONDS)
        self._key_hashes.pop(uid, None)
        self._written.pop(uid, None)
        if self._judge is not None:
            self._judge.forget(uid)
        self._starts.forget(uid)
        self._held.discard(uid)
        return Outcome()

    async def _finish(self, deployment: InferenceDeployment) -> Outcome:
        """Take the next step of a deletion; in the end, remove the object and its scoped keys."""
        uid = deployment.metadata.uid
        try:
            outcome = await self._tear_down(uid)
        except PlatformError as exc:
            await self._write_deleting(deployment, exc.text)
            return Outcome(failed=True)
        if outcome.again_after_seconds is not None:
            left = len(deployment.status.replicas)
            finish = "replica finishes its" if left == 1 else "replicas finish their"
            text = f"{left} {finish} requests, for at most {self._platform.drain_seconds:g} s"
            await self._write_deleting(deployment, text if left else "removing what is left")
            return outcome
        for key in await self._store.list(InferenceApiKey):
            if key.spec.scope == uid:
                await self._store.delete(InferenceApiKey, key.metadata.uid)
        metadata = deployment.metadata.without_finalizer(DEPLOYMENT_FINALIZER)
        if metadata.finalizers and metadata == deployment.metadata:
            await self._write_deleting(deployment, conditions.waits_for_others(metadata))
            return Outcome()
        try:
            await self._store.update(deployment.model_copy(update={"metadata": metadata}))
        except VersionConflict:
            return Outcome(again_after_seconds=0.0)
        return Outcome(changed=True)

    async def _write_deleting(self, deployment: InferenceDeployment, text: str) -> None:
        """Say where a deletion stands."""
        found = [c for c in deployment.status.conditions if c.type != "Progressing"]
        found.append(conditions.condition("Progressing", True, "Deleting", text))
        await self._write_conditions(deployment, found, ())


def _merge(deployment: InferenceDeployment, found: Sequence[Condition]) -> tuple[Condition, ...]:
    return conditions.merge(
        deployment.status.conditions,
        conditions.with_ready(found),
        generation=deployment.metadata.generation,
        now=datetime.now(UTC),
    )


def _essence(status: DeploymentStatus) -> tuple[object, ...]:
    """Return what of a status others read, without times and words."""
    states = frozenset((entry.type, entry.status, entry.reason) for entry in status.conditions)
    counts = (status.current_replicas, status.ready_replicas, status.autoscaled_replicas)
    names = (status.url, status.key_sha256, status.selector, status.uid, status.release)
    return states, counts, names


def route_key(key: InferenceApiKey) -> RouteKey:
    """Return a scoped key as the gateway knows it."""
    return RouteKey(id=key.metadata.uid, sha256=key.spec.sha256)

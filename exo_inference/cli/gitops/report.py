"""What became of each object, as a line each or as JSON; errors and progress go to stderr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from exo_inference.cli.gitops.changes import Action, Change
from exo_inference.errors import ApiError, ExoError

if TYPE_CHECKING:
    from exo_inference.cli.rendering.output import Output
    from exo_inference.cli.session import Session
    from exo_inference.sdk import Client
    from exo_inference.wire import DeploymentPlan, Operation, PlanProblem

_PAST = {
    Action.CREATE: "created",
    Action.UPDATE: "configured",
    Action.REPLACE: "replaced",
    Action.UNCHANGED: "unchanged",
    Action.DELETE: "deleted (pruned)",
}


def as_json(change: Change, **more: Any) -> dict[str, Any]:
    """Return a change as `-O json` shows it; the keys are frozen by a test."""
    fields = [{"field": f.field, "before": f.before, "after": f.after} for f in change.fields]
    base = {"kind": change.kind, "name": change.name, "action": str(change.action)}
    return {**base, "changes": fields, **more}


@dataclass
class Report:
    """Collects outcomes. Text is printed as it happens, JSON in the end by `finish`.

    Attributes:
        session: how to print.
        dry_run: `client`, `server` or None, named in every line.
        failures: what went wrong, in order.
    """

    session: Session
    dry_run: str | None = None
    failures: list[tuple[Change, ExoError]] = field(default_factory=list)
    _plans: dict[str, DeploymentPlan] = field(default_factory=dict)
    _warnings: dict[str, Sequence[PlanProblem]] = field(default_factory=dict)
    _entries: list[dict[str, Any]] = field(default_factory=list)

    def planned(self, change: Change, plan: DeploymentPlan | None) -> None:
        """Note what a deployment would take, for when it is done."""
        if plan is not None:
            self._plans[change.label] = plan

    def scaled(self, change: Change, operation: Operation) -> None:
        """Note what is to be said of the number of replicas that result.

        A plan made before, of other flags, was judged with the number that was there.
        """
        self._warnings[change.label] = operation.warnings or ()
        if (plan := self._plans.get(change.label)) is not None:
            from exo_inference.cli.plan.notices import of_the_machine

            of_before = of_the_machine(plan)
            problems = [each for each in plan.problems if each not in of_before]
            self._plans[change.label] = plan.model_copy(update={"problems": problems})

    def done(self, change: Change, object_id: str | None) -> None:
        """Note that an object is as it was wanted; it has no id in a dry run and when it is gone."""
        plan = self._plans.get(change.label)
        verdict = None if plan is None else str(plan.verdict)
        entry = as_json(change, dry_run=self.dry_run, error=None, verdict=verdict)
        self._entries.append(entry | {"id": object_id})
        if plan is not None or change.label in self._warnings:
            from exo_inference.cli.plan.notices import tell, warn

            if plan is not None:
                tell(self.session, plan, change.label)
            warn(self.session, self._warnings.get(change.label, ()), change.label)
        if not self._output.is_structured:
            suffix = f" ({self.dry_run} dry run)" if self.dry_run else ""
            self.session.success(f"{change.label} {_PAST[change.action]}{suffix}")

    def failed(self, change: Change, error: ExoError) -> None:
        """Note that an object could not be brought to what was wanted."""
        plan = error.plan if isinstance(error, ApiError) else None
        verdict = None if plan is None else str(plan.verdict)
        entry = as_json(change, dry_run=self.dry_run, error=str(error), verdict=verdict)
        self._entries.append(entry | {"id": change.live.id if change.live is not None else None})
        self.failures.append((change, error))

    def finish(self, client: Client) -> None:
        """Print what is printed at the end: for programs all objects, with where they stand."""
        if self._output.is_structured:
            standing = _standing(client) if any(entry["id"] for entry in self._entries) else {}
            nothing = {"state": None, "deployment_url": None}
            entries = [{**each, **standing.get(each["id"], nothing)} for each in self._entries]
            self._output.print_value(entries)

    @property
    def _output(self) -> Output:
        return self.session.output(())


def _standing(client: Client) -> dict[str, dict[str, Any]]:
    """Return state and URL of what there is, by id; nothing where the API cannot be asked."""
    try:
        found = {
            each.id: {"state": str(each.state), "deployment_url": each.deployment_url}
            for each in client.deployments.list()
        }
        models = client.models.list()
    except ExoError:
        return {}
    return found | {m.id: {"state": str(m.state), "deployment_url": None} for m in models}

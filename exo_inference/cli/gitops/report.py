"""What became of each object, as a line each or as JSON; errors and progress go to stderr."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from exo_inference.cli.gitops.plan import Action, Change
from exo_inference.cli.terminal import for_stream
from exo_inference.errors import ApiError, ExoError

if TYPE_CHECKING:
    from exo_inference.cli.session import Session
    from exo_inference.wire import DeploymentPlan

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
    _entries: list[dict[str, Any]] = field(default_factory=list)

    def planned(self, change: Change, plan: DeploymentPlan | None) -> None:
        """Note what a deployment would take, for when it is done."""
        if plan is not None:
            self._plans[change.label] = plan

    def done(self, change: Change) -> None:
        """Note that an object is as it was wanted."""
        plan = self._plans.get(change.label)
        verdict = None if plan is None else str(plan.verdict)
        self._entries.append(as_json(change, dry_run=self.dry_run, error=None, verdict=verdict))
        if plan is not None:
            from exo_inference.cli.planning.telling import tell

            tell(self.session, plan, change.label)
        if not self._is_json:
            suffix = f" ({self.dry_run} dry run)" if self.dry_run else ""
            self.session.success(f"{change.label} {_PAST[change.action]}{suffix}")

    def failed(self, change: Change, error: ExoError) -> None:
        """Note that an object could not be brought to what was wanted."""
        plan = error.plan if isinstance(error, ApiError) else None
        verdict = None if plan is None else str(plan.verdict)
        entry = as_json(change, dry_run=self.dry_run, error=str(error), verdict=verdict)
        self._entries.append(entry)
        self.failures.append((change, error))

    def finish(self) -> None:
        """Print what is printed at the end."""
        if self._is_json:
            print_json(self._entries)

    @property
    def _is_json(self) -> bool:
        return self.session.output(()).format == "json"


def print_json(value: Any) -> None:
    """Print data on stdout as one line of JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    click.echo(for_stream(text, sys.stdout))

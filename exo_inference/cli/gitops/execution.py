"""Makes the changes, object by object, and says what became of each. `apply` is the only caller.

An object that fails does not stop the others, except those that need it; a lost connection or a
refused key does, because every other one would fail alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from exo_inference.cli.gitops.changes import Action, Change, merged_spec
from exo_inference.cli.gitops.live import MODEL_KIND, LiveObject, is_on_the_hub
from exo_inference.cli.writes import by_name, send_create
from exo_inference.engine_names import default_engine
from exo_inference.errors import AuthenticationFailed, Conflict, ConnectionFailed, ExoError
from exo_inference.resources.wanted import WantedDeployment
from exo_inference.wire import ModelRef, Operation

if TYPE_CHECKING:
    from exo_inference.cli.gitops.report import Report
    from exo_inference.sdk import Client
    from exo_inference.wire import DeploymentPlan

REPLACE_SECONDS = 300.0
"""How long a replacement waits until the old object is gone; then it says so."""


@dataclass(frozen=True)
class Executor:
    """Makes the changes of one `apply`.

    Attributes:
        client: of the zone.
        report: told what became of each object.
        dry_run: `client` asks nobody, `server` asks for admission only, None makes the changes.
        deletes_first: what cannot be changed in place is deleted and created anew, as asked for.
        made: the last change of each object that was changed in place, by its label.
        huggingface_token: for models from the Hub.
    """

    client: Client
    report: Report
    dry_run: str | None = None
    huggingface_token: str | None = field(default=None, repr=False)
    deletes_first: bool = False
    made: dict[str, Operation] = field(default_factory=dict)

    def run(self, changes: Sequence[Change]) -> dict[str, str]:
        """Make the changes, and return the ids of the objects of the files by their labels.

        Raises:
            ConnectionFailed, AuthenticationFailed: nothing more can be done; the report has the
                rest. Other errors are in the report alone.
        """
        ids: dict[str, str] = {}
        missing = {c.name for c in changes if c.kind == MODEL_KIND and c.action == Action.CREATE}
        failed: set[str] = set()
        for change in changes:
            try:
                if change.action == Action.DELETE and (failures := self.report.failures):
                    # What failed may be what takes its place.
                    first = failures[0][0].label
                    raise ExoError(f"{change.label} was not pruned: {first} failed")
                if change.manifest and (model := change.manifest.spec.get("model")) in failed:
                    raise ExoError(f"{change.label} was not tried: its model {model} failed")
                if self.dry_run is None:
                    made = self._make(change)
                    if made is not None:
                        ids[change.label] = made
                elif self.dry_run == "server":
                    self._ask(change, missing)
            except (ConnectionFailed, AuthenticationFailed) as exc:
                self.report.failed(change, exc)
                raise
            except ExoError as exc:
                self.report.failed(change, exc)
                failed |= {change.name} if change.kind == MODEL_KIND else set()
            else:
                self.report.done(change, ids.get(change.label))
        return ids

    def _make(self, change: Change) -> str | None:
        """Change one object, and return its id if it is one of the files."""
        if change.action == Action.CREATE:
            return self._create(change)
        assert change.live is not None, f"{change.action} is about what exists"
        if change.action == Action.DELETE:
            self._wait(self._delete(change, dry_run=False))
            return None
        if change.action == Action.REPLACE:
            if self._replaces_in_place(change):
                self.made[change.label] = self._wait(self._replace(change, dry_run=False))
                return change.live.id
            return self._delete_first(change)
        if change.action == Action.UPDATE:
            self._update(change, dry_run=False)
        return change.live.id

    def _ask(self, change: Change, missing_models: set[str]) -> None:
        """Ask the server whether it would admit a change.

        What depends on a change that is not made (a deployment of a model that is not there yet, a
        name that is still taken, a model whose deployments are still there) cannot be asked.
        """
        if change.action == Action.CREATE:
            wanted = self._wanted(change)
            if change.kind == MODEL_KIND or wanted.get("model") not in missing_models:
                self._send_create(change, dry_run=True)
        elif change.action == Action.UPDATE:
            self._update(change, dry_run=True)
        elif change.action == Action.REPLACE:
            if change.kind == MODEL_KIND or self._wanted(change).get("model") not in missing_models:
                self._check_successor(change)
        elif change.action == Action.DELETE and change.kind != MODEL_KIND:
            self._delete(change, dry_run=True)

    def _replaces_in_place(self, change: Change) -> bool:
        return change.kind != MODEL_KIND and not self.deletes_first

    def _replace(self, change: Change, *, dry_run: bool) -> Operation:
        """Let the server put the new deployment in the old one's place."""
        assert change.live is not None, "only what exists is replaced"
        wanted = self._wanted_deployment(change)
        # What the file does not say of the engine the server leaves, or chooses for other GPUs.
        engine = change.manifest.spec.get("engine", {}) if change.manifest else {}
        with by_name(change.live):
            operation = self.client.deployments.replace(
                change.live,
                model=wanted.model or ModelRef(),
                gpu_type=wanted.gpu_type or "",
                gpu_count=wanted.gpu_count or 1,
                replicas=wanted.replicas,
                engine_parameters=wanted.engine_parameters or (),
                engine_version=engine.get("version"),
                engine=engine.get("name"),
                product_name=wanted.product_name,
                dry_run=dry_run,
            )
        self.report.planned(change, operation.plan)
        return operation

    def _delete_first(self, change: Change) -> str | None:
        """Delete an object, then create its successor; should that fail, what was there before."""
        assert change.live is not None, "only what exists is replaced"
        self._check_successor(change)
        if change.kind != MODEL_KIND:
            self.report.session.remark(
                f"{change.label} is deleted first: its id {change.live.id}, URL and key end with it"
            )
        self._wait(self._delete(change, dry_run=False))
        self._wait_until_gone(change)
        try:
            return self._create(change)
        except ExoError as exc:
            raise self._restore(change, change.live, exc) from exc

    def _check_successor(self, change: Change) -> None:
        """Have the server judge what shall take an object's place, as far as it can, before it is deleted.

        Raises:
            ExoError: it would be refused; nothing was changed.
        """
        if change.kind == MODEL_KIND:
            try:
                self._send_create(change, dry_run=True)
            except Conflict:  # all is well but that the present one has the name
                return
        elif self.client.can_replace():
            self._replace(change, dry_run=True)
        else:
            families = [each.family for each in self.client.deployments.instance_types()]
            wanted = merged_spec(change).get("gpuType")
            if wanted not in families:
                raise ExoError(
                    f"{change.label} was not deleted: there is no GPU type {wanted!r} for the new one",
                    hint=f"Choose one of: {', '.join(families)}.",
                )

    def _restore(self, change: Change, before: LiveObject, exc: ExoError) -> ExoError:
        """Create again what was deleted for a successor that was refused; return what is told of it."""
        lost = "" if change.kind == MODEL_KIND else ", its URL and its key are gone"
        text = (
            f"{change.label} was deleted (its id {before.id}{lost}), and the new one failed: {exc}"
        )
        try:
            made = self._create(replace(change, manifest=None))
        except ExoError as failure:
            return ExoError(
                f"{text}\nWhat was there before could not be created again either: {failure}",
                hint="Correct the file and apply it again, which creates it.",
            )
        return ExoError(
            f"{text}\nWhat was there before was created again, with the id {made}.",
            hint="Correct the file and apply it again.",
        )

    def _create(self, change: Change) -> str | None:
        operation = self._wait(self._send_create(change, dry_run=False))
        made = operation.reference.id if operation.reference else self._find(change)
        if self._is_stopped_later(change):
            # Exoscale's API creates with at least one replica; stopping it is a change of its own.
            self._wait(self.client.deployments.scale(made, 0))
        return made

    def _is_stopped_later(self, change: Change) -> bool:
        """Whether no replicas are wanted and the API cannot create that."""
        return self._wanted(change).get("replicas") == 0 and not self.client.can_create_stopped()

    def _find(self, change: Change) -> str:
        """Look up what was created, where the server did not say its id."""
        if change.kind == MODEL_KIND:
            return self.client.models.find(change.name).id
        return self.client.deployments.find(change.name).id

    def _send_create(self, change: Change, *, dry_run: bool) -> Operation:
        if change.kind == MODEL_KIND:
            return self.client.models.create(
                change.name,
                huggingface_token=self.huggingface_token if is_on_the_hub(change.name) else None,
                revision=self._wanted(change).get("revision"),
                dry_run=dry_run,
            )
        wanted = self._wanted_deployment(change)
        if self._is_stopped_later(change):
            wanted = replace(wanted, replicas=1)
        operation = send_create(self.client, wanted, dry_run=dry_run)
        self.report.planned(change, operation.plan or _plan_here(wanted))
        return operation

    def _update(self, change: Change, *, dry_run: bool) -> None:
        """Change flags and replicas; each write is based on what was there before it."""
        assert change.live is not None, "only what exists is updated"
        after = {field.field: field.after for field in change.fields}
        deployments, live = self.client.deployments, change.live
        with by_name(live):
            if after.keys() - {"replicas"}:
                operation = deployments.update(
                    live,
                    engine_parameters=after.get("engineParameters"),
                    engine_version=after.get("engine.version"),
                    dry_run=dry_run,
                )
                self.report.planned(
                    change, operation.plan or _plan_here(self._wanted_deployment(change))
                )
                self.made[change.label] = self._wait(operation)
                live = replace(live, version=operation.version or live.version)
            if "replicas" in after:
                operation = deployments.scale(live, after["replicas"], dry_run=dry_run)
                self.report.scaled(change, operation)
                self.made[change.label] = self._wait(operation)

    def _delete(self, change: Change, *, dry_run: bool) -> Operation:
        assert change.live is not None, "only what exists is deleted"
        if change.kind == MODEL_KIND:
            return self.client.models.delete(change.live.id, dry_run=dry_run)
        with by_name(change.live):
            return self.client.deployments.delete(change.live, dry_run=dry_run)

    def _wait_until_gone(self, change: Change) -> None:
        assert change.live is not None, "only what exists is replaced"
        if change.kind == MODEL_KIND:
            self.client.models.wait_until_deleted(change.live.id, timeout=REPLACE_SECONDS)
        else:
            self.client.deployments.wait_until_deleted(change.live.id, timeout=REPLACE_SECONDS)

    def _wait(self, operation: Operation) -> Operation:
        return self.client.operations.wait(operation)

    def _wanted(self, change: Change) -> dict[str, Any]:
        """Return what shall be: what the file has, on top of what is there."""
        if change.action == Action.CREATE:
            assert change.manifest is not None, "only what the files have is created"
            return change.manifest.spec
        return merged_spec(change)  # with no file, that which was there

    def _wanted_deployment(self, change: Change) -> WantedDeployment:
        return WantedDeployment.of_manifest(change.name, self._wanted(change))


def _plan_here(wanted: WantedDeployment) -> DeploymentPlan | None:
    """Plan for a control plane that does not; it has the usual engine alone."""
    from exo_inference.cli.plan.notices import plan_here

    usual = default_engine(wanted.gpu_type or "")
    return plan_here(wanted) if wanted.engine in (None, usual) else None

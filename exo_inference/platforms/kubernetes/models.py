"""`KubernetesModels`: one Helm release per model, whose Job brings the files onto a volume claim.

The model reconciler resolves a model first, so that revision and size are known, and then calls
`apply_model` until the files are there. As with deployments nothing is kept in memory: the Job says
how far it is, and why it failed.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from exo_inference.errors import ExoError, PlatformError, StoreError
from exo_inference.kubernetes_api.client import ApiRefusal, get_if_there, object_path
from exo_inference.kubernetes_api.deletion import delete_if_there
from exo_inference.kubernetes_api.informer import Object
from exo_inference.platforms.base import (
    DesiredModel,
    ModelPhase,
    ObservedModel,
    TokenSecretUnusable,
)
from exo_inference.platforms.kubernetes.cluster import Cluster
from exo_inference.platforms.kubernetes.denials import explain_denial
from exo_inference.platforms.kubernetes.diagnosis import (
    condition,
    container_status,
    diagnose_pod,
)
from exo_inference.platforms.kubernetes.model_values import (
    model_path,
    model_values,
    token_of,
    token_secret_name,
)
from exo_inference.platforms.kubernetes.names import (
    DOWNLOAD_CONTAINER,
    MODEL_CHART,
    MODEL_UID_LABEL,
    RELEASE_LABEL,
    SPEC_LABEL,
    annotation,
    is_part,
    label,
    model_release_names,
)
from exo_inference.platforms.kubernetes.records import Owner
from exo_inference.platforms.kubernetes.release_values import split_claim
from exo_inference.resources import TokenSecretRef

_EXIT_FINAL = 78
"""What the download ends with when another try will not help."""

_ERROR_PREFIX = "exo-download: error: "
_PROGRESS_LINES = 20


class KubernetesModels:
    """Models as releases of one namespace. The leader alone calls `apply_model`.

    Args:
        cluster: started; shared with the platform of the deployments.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def apply_model(self, desired: DesiredModel) -> ObservedModel:
        """Start the next step towards the files being there, and return what is so.

        Raises:
            PlatformError: the API was away.
            TokenSecretUnusable: the Secret that it names is not there, holds none, or is not the user's.
        """
        release = self._find_name(desired.uid, desired.release)
        desired = replace(desired, release=release)
        observed = await self._step(desired)
        return replace(observed, release=release)

    async def _step(self, desired: DesiredModel) -> ObservedModel:
        release, cluster = desired.release, self._cluster
        version = await asyncio.to_thread(cluster.helm.chart_version, MODEL_CHART)
        values = model_values(desired, cluster.settings.values.model, version)
        what = values["commonLabels"][SPEC_LABEL]
        job = self._find_job(desired.uid, what)
        if cluster.jobs.running(release):
            return ObservedModel(ModelPhase.PREPARING, details="its download is being set up")
        if job is None or await self._cluster.is_stuck(release):
            if desired.token_secret is not None:  # the pod will not look whose it is
                await self.read_token(desired.token_secret)
            return self._install(desired, values, what)
        if (lost := await self._find_lost(job, desired, values)) is not None:
            return lost
        observed = await self._observe(job, desired, values)
        if observed.phase is ModelPhase.READY or observed.final:
            await self._remove_token(release)
        return observed

    async def delete_model(self, uid: str) -> bool:
        """Uninstall the release, and say whether anything is left.

        The claim goes with it, unless the platform's values keep it.

        Raises:
            PlatformError: it failed; it is tried again.
        """
        cluster, jobs, names = self._cluster, self._cluster.jobs, model_release_names(uid)
        if any(jobs.running(name) for name in names):
            return False
        release = self._find_name(uid)
        if not self._jobs_of(uid):
            found = await cluster.find_releases(Owner(MODEL_CHART, uid), names)
            if not found:
                for name in names:
                    await self._remove_token(name)
                    jobs.forget(name)
                return True
            release = found[0]
        failure = jobs.failure(release, "uninstall")
        if jobs.wait_seconds(release, "uninstall") <= 0.0:
            self._cluster.remember(release, uid)
            jobs.start(release, "uninstalling", "uninstall", self._uninstall(release, uid))
        if failure is not None:
            raise PlatformError(f"the release cannot be removed: {failure.error.text}")
        return False

    async def find_loss(self, path: str) -> str:
        """Return why the files at a path are not there any more, or soon will not be; empty if they are.

        Raises:
            StoreError: the API was away.
        """
        claim, _, _ = split_claim(path)
        found = await self._read_claim(claim)
        if found is None:
            return f"its volume is gone: there is no PersistentVolumeClaim {claim}"
        if found["metadata"].get("deletionTimestamp"):
            return (
                f"its volume is being deleted: the PersistentVolumeClaim {claim} goes when no pod uses it any "
                "more, and the model is fetched again then"
            )
        if found.get("status", {}).get("phase") == "Lost":
            return f"its volume is lost: what the PersistentVolumeClaim {claim} was bound to is gone. Delete it"
        return ""

    async def _read_claim(self, name: str) -> Object | None:
        known = self._cluster.claims.get(name)
        if known is not None:
            return known
        api = self._cluster.api  # of the administrator's own, or the watch has not told of it yet
        return await get_if_there(api, object_path(api, "persistentvolumeclaims", name))

    async def _find_lost(
        self, job: Object, desired: DesiredModel, values: dict[str, Any]
    ) -> ObservedModel | None:
        """Look whether what a Job has brought is still there; if not, make way for another Job."""
        if condition(job, "Complete").get("status") != "True":
            return None
        api, path = self._cluster.api, model_path(desired.release, values)
        try:
            loss = await self.find_loss(path)
            claim = await self._read_claim(split_claim(path)[0])
            if not loss and claim is not None and not _is_younger(claim, job):
                return None
            if claim is None or not loss:
                job_path = object_path(api, "jobs", job["metadata"]["name"], group="batch/v1")
                await delete_if_there(api, job_path, with_pods=True)
        except StoreError as exc:
            raise PlatformError(f"cannot look at the model's volume: {exc.message}") from exc
        details = loss or "its volume was made anew"
        return ObservedModel(ModelPhase.PREPARING, details=f"{details}; it is fetched again")

    async def read_token(self, secret: TokenSecretRef) -> str:
        """Return the Hub's token that a user's Secret holds.

        Raises:
            TokenSecretUnusable: it is not there, or holds none, or is not the user's.
            StoreError: the API was away.
        """
        api = self._cluster.api
        found = await get_if_there(api, object_path(api, "secrets", secret.name))
        if found is None:
            raise TokenSecretUnusable(
                f"there is no Secret {secret.name} in namespace {api.namespace}, which "
                "spec.tokenSecret names",
                hint=f"Run `kubectl -n {api.namespace} create secret generic {secret.name} "
                f"--from-file={secret.key}=FILE`.",
            )
        return token_of(found, secret, self._cluster.settings.own_secrets)

    async def models(self) -> set[str]:
        """Return the uids of all models of which anything is left, but for claims that are kept."""
        found = {
            label(claim, MODEL_UID_LABEL)
            for claim in self._cluster.claims.all()
            if annotation(claim, "helm.sh/resource-policy") != "keep"
            and is_part(claim, model_release_names(label(claim, MODEL_UID_LABEL)))
        }
        found |= {uid for uid in self._cluster.downloads.known_keys() if self._jobs_of(uid)}
        releases = {name for uid in found for name in model_release_names(uid)}
        left = await self._cluster.find_unfinished(MODEL_CHART, releases.__contains__)
        return (found | left) - {""}

    def _find_name(self, uid: str, recorded: str = "") -> str:
        """Return the name of a model's release: as it was installed, or as it will be."""
        names = model_release_names(uid)
        if recorded in names:
            return recorded
        jobs = self._jobs_of(uid)
        return label(jobs[-1], RELEASE_LABEL) if jobs else names[0]

    def _jobs_of(self, uid: str) -> list[Object]:
        """Return the Jobs of our release of a model; the chart can be installed by hand, too."""
        names = model_release_names(uid)
        return [job for job in self._cluster.downloads.by_key(uid) if is_part(job, names)]

    def _find_job(self, uid: str, what: str) -> Object | None:
        jobs = self._jobs_of(uid)
        return next((job for job in jobs if label(job, SPEC_LABEL) == what), None)

    # -- the release

    def _install(self, desired: DesiredModel, values: dict[str, Any], what: str) -> ObservedModel:
        release, jobs = desired.release, self._cluster.jobs
        failure = jobs.failure(release, what)
        if jobs.wait_seconds(release, what) <= 0.0:
            self._cluster.remember(release, desired.uid)
            jobs.start(release, "installing", what, self._upgrade(desired, values))
        if failure is None:
            return ObservedModel(ModelPhase.PREPARING, details="its download is being set up")
        if getattr(failure.error, "transient", True):
            raise PlatformError(f"the download cannot be set up now: {failure.error.text}")
        known = explain_denial(failure.error.message)
        text = known.details if known else failure.error.message
        return ObservedModel(ModelPhase.FAILED, details=f"the download is refused: {text}")

    async def _upgrade(self, desired: DesiredModel, values: dict[str, Any]) -> None:
        release = desired.release
        if desired.token is not None and desired.token_secret is None:
            await self._write_token(release, desired)
        await self._cluster.upgrade(release, desired.uid, MODEL_CHART, values)
        # What Helm made is known at once, or the next look would have it made again.
        api, selector = self._cluster.api, f"{MODEL_UID_LABEL}={desired.uid}"
        path = object_path(api, "jobs", group="batch/v1")
        for job in (await api.get(path, {"labelSelector": selector}))["items"]:
            self._cluster.downloads.observe_answer(job)

    async def _uninstall(self, release: str, uid: str) -> None:
        await self._cluster.uninstall(release, uid, MODEL_CHART)
        api = self._cluster.api
        for job in self._jobs_of(uid):  # should Helm's record of it be gone
            path = object_path(api, "jobs", job["metadata"]["name"], group="batch/v1")
            await delete_if_there(api, path)
        await delete_if_there(api, object_path(api, "secrets", token_secret_name(release)))

    # -- the token

    async def _write_token(self, release: str, desired: DesiredModel) -> None:
        assert desired.token is not None, "callers look first"
        name = token_secret_name(release)
        data = {"token": base64.b64encode(desired.token.encode()).decode()}
        labels = {MODEL_UID_LABEL: desired.uid, "app.kubernetes.io/part-of": "exo-inference"}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": labels},
            "data": data,
        }
        api = self._cluster.api
        try:
            await api.create(object_path(api, "secrets"), body)
        except ApiRefusal as exc:
            if exc.status_code != 409:
                raise
            await api.merge(object_path(api, "secrets", name), {"data": data})

    async def _remove_token(self, release: str) -> None:
        api = self._cluster.api
        try:
            await delete_if_there(api, object_path(api, "secrets", token_secret_name(release)))
        except ExoError as exc:
            raise PlatformError(f"the Hub's token cannot be removed: {exc.message}") from exc

    # -- what is so

    async def _observe(
        self, job: Object, desired: DesiredModel, values: dict[str, Any]
    ) -> ObservedModel:
        if condition(job, "Complete").get("status") == "True":
            path = model_path(desired.release, values)
            return ObservedModel(ModelPhase.READY, path, desired.size_bytes)
        pods = self._job_pods(desired.uid, job["metadata"]["name"])
        if condition(job, "Failed").get("status") == "True":
            return _failed(job, pods)
        if not pods:
            return ObservedModel(ModelPhase.PREPARING, details="waiting for the download's pod")
        pod = pods[-1]
        if "running" in container_status(pod, DOWNLOAD_CONTAINER).get("state", {}):
            present = read_progress(await self._last_lines(pod))
            return ObservedModel(ModelPhase.DOWNLOADING, downloaded_bytes=present or 0)
        if _end(pod).get("exitCode") == 0:  # the Job is complete in a moment
            size = desired.size_bytes
            return ObservedModel(ModelPhase.DOWNLOADING, downloaded_bytes=size)
        found = diagnose_pod(
            pod,
            self._cluster.pod_events(pod),
            container=DOWNLOAD_CONTAINER,
            node=self._cluster.node_of(pod),
        )
        said = _last_error(pod)
        details = said or (found.details if found else "the download's pod is being set up")
        return ObservedModel(ModelPhase.PREPARING, details=details)

    def _job_pods(self, uid: str, job: str) -> list[Object]:
        pods = self._cluster.pods.by_key(uid)
        return [pod for pod in pods if label(pod, "batch.kubernetes.io/job-name") == job]

    async def _last_lines(self, pod: Object) -> list[str]:
        api = self._cluster.api
        path = object_path(api, "pods", pod["metadata"]["name"]) + "/log"
        query = {"container": DOWNLOAD_CONTAINER, "tailLines": str(_PROGRESS_LINES)}
        try:
            return [line async for line in api.lines(path, query, idle_seconds=5.0)]
        except StoreError:  # its node does not answer; the download goes on
            return []


def read_progress(lines: Sequence[str]) -> int | None:
    """Return the bytes that are there, from the last line in which a download says so."""
    for line in reversed(lines):
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        present = said.get("downloaded_bytes") if isinstance(said, dict) else None
        if isinstance(present, int):
            return present
    return None


def _failed(job: Object, pods: Sequence[Object]) -> ObservedModel:
    ends = [_end(pod) for pod in pods]
    final = any(end.get("exitCode") == _EXIT_FINAL for end in ends)
    said = next((text for pod in reversed(pods) if (text := _last_error(pod))), "")
    if not said and pods:
        found = diagnose_pod(pods[-1], container=DOWNLOAD_CONTAINER)
        said = found.details if found is not None else ""
    why = condition(job, "Failed")
    if why.get("reason") == "DeadlineExceeded":
        said = "the download took longer than download.activeDeadlineSeconds. Raise it"
    said = said or str(why.get("message", "the download failed"))
    return ObservedModel(ModelPhase.FAILED, details=said, final=final)


def _end(pod: Object) -> Object:
    found: Object = container_status(pod, DOWNLOAD_CONTAINER).get("state", {}).get("terminated", {})
    return found


def _last_error(pod: Object) -> str:
    """Return what a download said when it failed."""
    for line in reversed(str(_end(pod).get("message", "")).splitlines()):
        _, found, text = line.partition(_ERROR_PREFIX)
        if found:
            return text.strip()
    return ""


def _is_younger(claim: Object, job: Object) -> bool:
    """Whether a claim was made after a Job had ended, so that nothing of it is on the claim."""
    ended = str(job.get("status", {}).get("completionTime", ""))
    return bool(ended) and str(claim["metadata"].get("creationTimestamp", "")) > ended

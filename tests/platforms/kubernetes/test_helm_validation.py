"""Unknown fields are refused although Helm compares objects with the schemas only once per form."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from exo_inference.platforms.kubernetes import KubernetesSettings, PlatformValues
from exo_inference.platforms.kubernetes.helm import Helm, HelmFailed
from exo_inference.platforms.kubernetes.names import DEPLOYMENT_CHART
from exo_inference.platforms.kubernetes.release_values import Release, build_release
from tests.desired_deployments import altered
from tests.kubernetes_api import KubernetesApi
from tests.platforms.kubernetes.on_api_server import CHARTS, DESIRED


def release(given: dict[str, Any] | None = None) -> Release:
    desired = altered(DESIRED, uid=str(uuid.uuid4()))
    return build_release(desired, PlatformValues(deployment=given or {}))


@pytest.fixture
def helm(kubernetes_api: KubernetesApi, tmp_path: Path) -> Helm:
    settings = KubernetesSettings(CHARTS, tmp_path, kubeconfig=kubernetes_api.kubeconfig)
    return Helm(settings, kubernetes_api.namespace)


async def test_a_misspelled_field_is_refused_after_others_were_installed(
    helm: Helm, kubernetes_api: KubernetesApi
) -> None:
    for _ in range(2):
        wanted = release()
        await helm.upgrade(wanted.name, DEPLOYMENT_CHART, wanted.values)
    wrong = release({"affinity": {"podAfinity": {}}})
    for _ in range(2):
        with pytest.raises(HelmFailed, match="podAfinity") as failed:
            await helm.upgrade(wrong.name, DEPLOYMENT_CHART, wrong.values)
        assert not failed.value.transient


async def test_what_the_api_does_not_allow_is_refused_where_helm_does_not_compare(
    helm: Helm, kubernetes_api: KubernetesApi
) -> None:
    good, wrong = release(), release()
    await helm.upgrade(good.name, DEPLOYMENT_CHART, good.values)
    annotations = {"inference.exo.dev/pods-hash": "x" * 300_000}  # longer than the API allows
    values = {**wrong.values, "podAnnotations": annotations}
    with pytest.raises(HelmFailed, match="annotations: Too long"):
        await helm.upgrade(wrong.name, DEPLOYMENT_CHART, values)

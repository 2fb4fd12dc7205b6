"""The fake kubelet of an API server that is a test's own."""

from __future__ import annotations

import pytest

from tests.kubernetes_api import KubernetesApi
from tests.platforms.kubernetes.on_api_server import FakeKubelet


@pytest.fixture
def kubelet(kubernetes_api: KubernetesApi) -> FakeKubelet:
    kubernetes_api.kubectl("create", "serviceaccount", "default")  # no controller makes it here
    return FakeKubelet(kubernetes_api)

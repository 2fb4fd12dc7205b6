"""`--set podSecurity.runAsUser=null` leaves the user to the cluster, as OpenShift wants it; it is never 0."""

from __future__ import annotations

import pytest

from tests.charts.rendering import pod_templates, render

VALUES = {
    "exo-inference": "crds.install=false",
    "inference-deployment": "model.source=a/b,model.claimName=c",
    "inference-model": "model.source=a/b,model.sizeBytes=5",
}
FIELDS = {
    "exo-inference": ("runAsUser", "runAsGroup"),
    "inference-deployment": ("runAsUser", "runAsGroup", "fsGroup"),
    "inference-model": ("runAsUser", "runAsGroup", "fsGroup"),
}


@pytest.mark.parametrize("chart", VALUES)
def test_a_null_leaves_the_field_out_and_root_stays_forbidden(chart: str) -> None:
    nulls = ",".join(f"podSecurity.{field}=null" for field in FIELDS[chart])
    for words in ((), ("--set", nulls)):
        objects = render(chart, "--set", VALUES[chart], *words)
        found = [pod["spec"]["securityContext"] for item in objects for pod in pod_templates(item)]
        assert found
        for context in found:
            assert context["runAsNonRoot"] is True
            present = [field for field in FIELDS[chart] if field in context]
            assert present == ([] if words else list(FIELDS[chart]))

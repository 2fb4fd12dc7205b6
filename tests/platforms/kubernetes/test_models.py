"""Models are brought by Jobs and removed again, with the real Helm on a real API server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from exo_inference.platforms.base import (
    ModelPhase,
)
from exo_inference.platforms.kubernetes.names import model_release_name
from tests.platforms.kubernetes.on_api_server import (
    MODEL,
    UID,
    FakeKubelet,
    install_model,
    running,
    set_job_status,
    until_model,
)


async def test_a_model_is_brought_by_its_job_and_the_token_goes_when_it_is_there(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    api = kubelet.api
    async with running(api, tmp_path) as process:
        job = await install_model(process, MODEL)
        secret = f"{model_release_name(UID)}-token"
        assert api.kubectl("get", "secret", secret, "--output=name").stdout.strip()
        manifests = api.kubectl("get", "job,pvc", "--output=json").stdout
        assert "hf_secret" not in manifests
        set_job_status(api, job, "Complete")
        observed = await until_model(process, MODEL, ModelPhase.READY)
        assert observed.path == f"pvc:{model_release_name(UID)}"
        assert api.kubectl("get", "secret", secret, check=False).returncode != 0
        assert await process.models.models() == {UID}
        assert await process.platform.deployments() == set()
        async with asyncio.timeout(60):
            while not await process.models.delete_model(UID):
                await asyncio.sleep(0.05)
        assert api.kubectl("get", "job,secret", "--output=name").stdout == ""


async def test_a_failed_download_says_what_the_source_said_and_can_be_tried_again(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        job = await install_model(process, MODEL)
        set_job_status(kubelet.api, job, "Failed", reason="BackoffLimitExceeded")
        observed = await until_model(process, MODEL, ModelPhase.FAILED)
        assert observed.details
        assert await install_model(process, replace(MODEL, attempt=1)) != job


async def test_a_download_that_ended_well_is_no_failure_before_its_job_says_so(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        await install_model(process, MODEL)
        template = process.cluster.downloads.by_key(UID)[-1]["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": "download"},
            "spec": {**template["spec"], "nodeName": "node-of-the-test"},
        }
        kubelet.api.request("POST", f"/api/v1/namespaces/{kubelet.api.namespace}/pods", pod)
        path = f"/api/v1/namespaces/{kubelet.api.namespace}/pods/download/status"
        ended = {
            "name": "download",
            "image": "i",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": {"exitCode": 0}},
        }
        body = {"status": {"phase": "Succeeded", "containerStatuses": [ended]}}
        kubelet.api.client.request(
            "PATCH", path, body, content_type="application/strategic-merge-patch+json"
        )
        observed = await until_model(process, MODEL, ModelPhase.DOWNLOADING)
        assert (observed.downloaded_bytes, observed.details) == (MODEL.size_bytes, "")

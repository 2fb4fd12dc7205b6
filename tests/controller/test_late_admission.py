"""What is judged on a cluster: only what no controller admitted, whatever the object says of itself.

The API admits here, with `--force`, what memory refuses; then another process with the same key looks
at it, as the leader of a cluster does. Who is refused was judged, who is not was known.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from exo_inference.controller.context import Context
from exo_inference.controller.local.server import open_context
from exo_inference.controller.reconcile.late_admission import LateAdmission
from exo_inference.controller.secret_box import SecretBox
from exo_inference.controller.settings import ControllerSettings
from exo_inference.resources import ADMITTED_ANNOTATION, InferenceDeployment
from exo_inference.state_dir import StateDir
from tests.controller.conftest import Controller
from tests.controller.fakes import GPU_FAMILIES, FakeHub, FakePlatform, FakeSource

MODEL = "mistralai/Ministral-3-8B-Instruct-2512"
TOO_LONG = ["--max-model-len=262144"]
FITTING = ["--max-model-len=60000"]
REFUSED = "does not fit 1 x gpua5000"


def body(name: str, flags: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "gpu-type": "gpua5000",
        "gpu-count": 1,
        "replicas": 1,
        "model": {"name": MODEL},
        "inference-engine-parameters": flags,
    }


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> StateDir:
    """What a controller leaves that admitted by force: by create, by update and by replace."""
    made = StateDir(tmp_path_factory.mktemp("judging") / "state")
    controller = Controller(made, platform=FakePlatform(families=GPU_FAMILIES))
    with controller.running():
        controller.create_model(MODEL)
        path, force = "/v2/ai/deployment", "?force=force"
        answer = controller.call("POST", f"{path}{force}", json=body("created", TOO_LONG))
        assert answer.ok, answer.text
        for name, method in (("updated", "PATCH"), ("replaced", "PUT")):
            answer = controller.call("POST", path, json=body(name, FITTING))
            assert answer.ok, answer.text
            uid = answer.json()["reference"]["id"]
            change = {"inference-engine-parameters": TOO_LONG}
            wanted = change if method == "PATCH" else body(name, TOO_LONG)
            answer = controller.call(method, f"{path}/{uid}{force}", json=wanted)
            assert answer.ok, answer.text
    return made


@pytest.fixture
async def context(state: StateDir) -> AsyncIterator[Context]:
    """Another controller with the same store and the same key."""
    settings = ControllerSettings(state=state, zone="ch-dk-2", gateway_url="http://gateway")
    platform = FakePlatform(families=GPU_FAMILIES)
    fakes = {"find_source": FakeSource().find, "fetch": FakeHub().fetch}
    async with open_context(settings, platform=platform, **fakes) as opened:
        yield opened


async def load(context: Context, name: str) -> InferenceDeployment:
    return await context.store.get_by_name(InferenceDeployment, name)


def says(deployment: InferenceDeployment, annotation: str | None) -> InferenceDeployment:
    """Return a deployment whose annotation is another, as who may write objects can write it."""
    annotations = {} if annotation is None else {ADMITTED_ANNOTATION: annotation}
    metadata = deployment.metadata.model_copy(update={"annotations": annotations})
    return deployment.model_copy(update={"metadata": metadata})


def was_found_good(deployment: InferenceDeployment, digest: str) -> InferenceDeployment:
    status = deployment.status.model_copy(update={"admitted_spec": digest})
    return deployment.model_copy(update={"status": status})


@pytest.mark.parametrize("name", ["created", "updated", "replaced"])
async def test_what_the_api_admitted_is_not_judged_again_by_whoever_has_its_key(
    context: Context, name: str
) -> None:
    deployment = await load(context, name)
    judge = LateAdmission(context)
    assert await judge.find_refusal(deployment) == ""
    assert judge.admitted_spec(deployment) == deployment.spec.full_digest
    assert REFUSED in await LateAdmission(context).find_refusal(says(deployment, None))


@pytest.mark.parametrize("name", ["created", "updated", "replaced"])
async def test_other_replicas_are_no_other_specification(context: Context, name: str) -> None:
    deployment = await load(context, name)
    scaled = deployment.spec.model_copy(update={"replicas": 0})
    deployment = deployment.model_copy(update={"spec": scaled})
    assert await LateAdmission(context).find_refusal(deployment) == ""


async def test_a_digest_that_anybody_can_compute_is_judged(context: Context) -> None:
    deployment = await load(context, "created")
    digest, full = deployment.spec.digest, deployment.spec.full_digest
    forged = SecretBox(b"x" * 32).admission_seal(deployment.metadata.uid, full)
    for text in (digest, full, f"{digest}.", f"{full}.", f"{full}.{forged}", "é", ""):
        assert REFUSED in await LateAdmission(context).find_refusal(says(deployment, text)), text


async def test_a_seal_is_worth_nothing_on_another_object(context: Context) -> None:
    sealed = (await load(context, "created")).metadata.annotations[ADMITTED_ANNOTATION]
    other = await load(context, "updated")
    assert other.spec.full_digest == (await load(context, "created")).spec.full_digest
    assert REFUSED in await LateAdmission(context).find_refusal(says(other, sealed))


async def test_a_seal_is_worth_nothing_for_another_specification(context: Context) -> None:
    deployment = await load(context, "created")
    flags = (*deployment.spec.engine_parameters, "--max-num-seqs=7")
    changed = deployment.spec.model_copy(update={"engine_parameters": flags})
    deployment = deployment.model_copy(update={"spec": changed})
    assert REFUSED in await LateAdmission(context).find_refusal(deployment)


async def test_what_an_earlier_version_found_good_is_not_judged_again(context: Context) -> None:
    """It wrote the beginning of the digest, into the status and into the annotation."""
    deployment = await load(context, "created")
    short = deployment.spec.digest
    assert deployment.spec.full_digest.startswith(short)
    assert len(short) == 16
    before = was_found_good(says(deployment, short), short)
    judge = LateAdmission(context)
    assert await judge.find_refusal(before) == ""
    # From now on the whole digest counts, also for a controller that starts later.
    whole = judge.admitted_spec(before)
    assert whole == deployment.spec.full_digest
    assert await LateAdmission(context).find_refusal(was_found_good(before, whole)) == ""
    assert REFUSED in await LateAdmission(context).find_refusal(was_found_good(before, "f" * 16))

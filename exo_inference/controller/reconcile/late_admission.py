"""Whether what kubectl, Argo CD or Flux wrote can be: objects that came past the API were never judged.

The deployments' reconciler of a cluster asks before it does anything for a specification. What the API
admitted is known by the seal in its annotation, and what was found good by its digest in the status.
Neither is judged again, so neither `--force` nor what runs already is taken back when the cluster
changes. Who may write objects may write annotations: a seal can only be made with the controllers' key,
and is of one specification of one object.
"""

from __future__ import annotations

import asyncio

from exo_inference.controller import admission
from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.admission.seals import is_sealed
from exo_inference.controller.context import Context
from exo_inference.resources import InferenceDeployment
from exo_inference.resources.wanted import WantedDeployment

MAX_CHARACTERS = 1000
"""Of a refusal; conditions and events are read in tables."""


class LateAdmission:
    """Judges specifications, each that was found good once.

    Args:
        context: what they are judged against.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._admitted: dict[str, str] = {}

    def admitted_spec(self, deployment: InferenceDeployment) -> str:
        """Return the digest of the newest specification of a deployment that was found good."""
        return self._admitted.get(deployment.metadata.uid, deployment.status.admitted_spec)

    def forget(self, uid: str) -> None:
        """Drop what is kept of a deployment that is gone."""
        self._admitted.pop(uid, None)

    async def find_refusal(self, deployment: InferenceDeployment) -> str:
        """Return why a specification cannot be, and what to do; empty if it can."""
        uid, spec = deployment.metadata.uid, deployment.spec
        digest = spec.full_digest
        # The short one is what earlier versions wrote into the status.
        is_known = self.admitted_spec(deployment) in (digest, spec.digest)
        if not is_known and not is_sealed(deployment, self._context.secret_box):
            families = await self._context.families()
            wanted = WantedDeployment.of(deployment)
            draft_name = admission.find_draft_name(wanted, families)
            world = await self._context.load_world(families, wanted.model, draft_name)
            try:
                await asyncio.to_thread(admission.admit_create, wanted, world.without(uid))
            except Refused as refused:
                return _describe(refused)
        self._admitted[uid] = digest
        return ""


def _describe(refused: Refused) -> str:
    text = refused.text
    if refused.ways_out:
        text = f"{text.rstrip('. :')}: {'; '.join(refused.ways_out)}"
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"

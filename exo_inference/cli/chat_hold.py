"""Says on stderr what a question waits for, while the gateway holds it for a replica that is on its way.

Of a request that it holds the gateway says nothing before the answer begins, so the control plane is asked, from
a thread of its own. What that does not tell is not said; the answer comes all the same. Used by `chat`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from exo_inference.cli.session import Session
from exo_inference.cli.wait import deployment_standing
from exo_inference.errors import ExoError

LOOK_SECONDS = 2.0
"""How long an answer may take to begin before it is looked at why, and between two looks."""


@contextlib.contextmanager
def remarks_while_held(session: Session, deployment_id: str) -> Iterator[Callable[[], None]]:
    """Say what the question waits for, until the block ends or what is yielded is called: the answer begins."""
    begun = threading.Event()
    if not session.quiet:
        arguments = (session, deployment_id, begun)
        threading.Thread(target=_tell, args=arguments, name="hold", daemon=True).start()
    try:
        yield begun.set
    finally:
        begun.set()


def _tell(session: Session, deployment_id: str, begun: threading.Event) -> None:
    said = ""
    while not begun.wait(LOOK_SECONDS):
        text = _waited_for(session, deployment_id)
        if text not in ("", said) and not begun.is_set():
            session.remark(f"(waiting for a replica: {text})")
            said = text


def _waited_for(session: Session, deployment_id: str) -> str:
    """Return where a deployment stands of which nothing is ready; empty for any other, or if nobody says."""
    with contextlib.suppress(ExoError), session.connect() as client:
        found = client.deployments.get(deployment_id)
        if found.ready_replicas == 0:
            return deployment_standing(found)
    return ""

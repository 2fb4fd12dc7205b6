"""Writes `docs/reference/sdk.md` from the client's own docstrings, so that the two cannot differ.

Run as `python scripts/generate_sdk_reference.py`, or with `--check` to only compare.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from exo_inference import Client, errors
from exo_inference.sdk._sync.api_keys import ApiKeys
from exo_inference.sdk._sync.deployments import Deployments
from exo_inference.sdk._sync.models import Models
from exo_inference.sdk._sync.operations import Operations
from exo_inference.sdk._sync.zones import Zones

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "sdk.md"
NOUNS = {
    "models": Models,
    "deployments": Deployments,
    "api_keys": ApiKeys,
    "operations": Operations,
    "zones": Zones,
}
INTRODUCTION = """\
# Python SDK

<!-- Written by `python scripts/generate_sdk_reference.py`; do not edit. -->

    from exo_inference import AsyncClient, Client

`AsyncClient` has the same methods as coroutines, and logs as asynchronous iterators. What is not given
comes from the environment and the configuration file: [configuration](configuration.md). Answers are
typed (`exo_inference.wire`); every error is an `ExoError` with `message` and, mostly, a `hint`.

A call is repeated by itself only where that is safe: reads, deletes, and creates, which carry an
idempotency key. Times are in seconds.
"""


def document(function: object) -> str:
    """Return a docstring as an indented block, without the blank first column."""
    return "\n".join(
        f"    {line}".rstrip() for line in (inspect.getdoc(function) or "").split("\n")
    )


def describe(owner: str, cls: type) -> list[str]:
    """Return one section per public method of a class, in the order of the source."""
    parts = []
    for name, member in vars(cls).items():
        if name.startswith("_") or not inspect.isfunction(member):
            continue
        signature = str(inspect.signature(member)).replace("'", "")
        signature = signature.replace("(self, ", "(").replace("(self)", "()")
        parts.append(f"### `{owner}.{name}`\n\n    {name}{signature}\n\n{document(member)}\n")
    return parts


def reference_page() -> str:
    """Return the page as it should be."""
    signature = str(inspect.signature(Client)).replace("'", "")
    parts = [INTRODUCTION, f"## `Client`\n\n    Client{signature}\n\n{document(Client.__init__)}\n"]
    parts += describe("client", Client)
    for noun, cls in NOUNS.items():
        parts += [f"## `client.{noun}`\n", *describe(f"client.{noun}", cls)]
    tree = (inspect.getdoc(errors) or "").split("::\n\n")[1].split("\n\n")[0]
    parts.append(f"## Errors\n\n`exo_inference.errors`:\n\n{tree}\n")
    return "\n".join(parts)


def main() -> int:
    """Write the page, or compare it with `--check`; 1 when it differs."""
    page = reference_page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
        return 0
    if PAGE.read_text() == page:
        return 0
    print(f"{PAGE} is out of date; run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""Where `model create` takes a Hub token from: a file, stdin, the environment, at worst argv.

A token in argv stands in the process list and in the shell's history, so that flag warns.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import click

from exo_inference.errors import UsageError


@dataclass(frozen=True)
class TokenSources:
    """The flags that may bring a token."""

    value: str | None = field(default=None, repr=False)
    file: Path | None = None


def read_token(sources: TokenSources) -> str | None:
    """Return the token, or None when there is none anywhere.

    Raises:
        UsageError: two flags disagree, or a file holds no token.
    """
    if sources.value is not None and sources.file is not None:
        raise UsageError(
            "--huggingface-token and --huggingface-token-file were both given",
            hint="Give the file alone.",
        )
    if sources.file is not None:
        return _read_file(sources.file)
    if sources.value is not None:
        click.echo(
            "warning: --huggingface-token shows the token to everyone on this machine; "
            "use --huggingface-token-file, `-` for stdin, or HF_TOKEN instead.",
            err=True,
        )
        return sources.value or None
    from exo_inference.settings import read_hub_token

    return read_hub_token()


def _read_file(path: Path) -> str:
    source = "stdin" if str(path) == "-" else str(path)
    try:
        text = sys.stdin.read() if source == "stdin" else path.expanduser().read_text("utf-8")
    except OSError as exc:
        raise UsageError(
            f"cannot read the Hub token from {source}: {exc.strerror or exc}",
            hint="Check --huggingface-token-file.",
        ) from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"cannot read the Hub token from {source}: it is not text") from exc
    token = text.strip()
    if not token or len(token.split()) != 1:
        raise UsageError(
            f"expected one Hub token in {source}, found {len(token.split())} words",
            hint="The file holds the token alone, such as hf_….",
        )
    return token

"""`python -m exo_inference.hub --directory DIR -- MODEL`: bring a model's files, and say how far it is.

Runs as the download Job of the chart inference-model. Prints one JSON object a line on stdout:
`resolved`, `downloading` every few seconds, `downloaded` at the end; logs and errors go to stderr.
Exits 0 when all files are there and checked, 78 when another try will not help, 75 when it may.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from exo_inference.errors import ExoError, HubError, UsageError
from exo_inference.hub.base import FetchCancelled, NoSpace, SourceUnreachable
from exo_inference.hub.volume import Wanted, fill, resolve
from exo_inference.logs import set_up_logging

_CHECKSUM = re.compile(r"sha256:[0-9a-f]{64}")


def main(argv: Sequence[str] | None = None) -> int:
    """Bring one model and return the exit status."""
    options = _parse(argv)
    set_up_logging()
    try:
        wanted = _wanted(options)
        report = asyncio.run(_run(wanted, options.progress_seconds))
    except ExoError as exc:
        text = f"exo-download: error: {exc.text}"
        print(text, file=sys.stderr)
        _write_report(options.report, text)
        return os.EX_CONFIG if _is_final(exc) else os.EX_TEMPFAIL
    _write_report(options.report, report)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m exo_inference.hub", description=__doc__)
    parser.add_argument("model", help="ORG/NAME of the Hugging Face Hub, or a built-in model")
    parser.add_argument("--directory", type=Path, required=True, help="where the files go")
    parser.add_argument("--revision", help="branch, tag or commit")
    parser.add_argument("--checksum", help="sha256:HEX that the list of all files must hash to")
    parser.add_argument("--token-file", type=Path, help="file with the Hub's token")
    parser.add_argument("--report", type=Path, help="file for the last line, or the error")
    parser.add_argument("--progress-seconds", type=float, default=5.0, help="between two lines")
    return parser.parse_args(argv)


def _wanted(options: argparse.Namespace) -> Wanted:
    if options.checksum is not None and not _CHECKSUM.fullmatch(options.checksum):
        raise UsageError(
            f"--checksum is {options.checksum[:100]!r}, expected sha256: and 64 hex digits"
        )
    return Wanted(
        source=options.model,
        revision=options.revision,
        checksum=options.checksum,
        directory=options.directory,
        token=None if options.token_file is None else _read_token(options.token_file),
    )


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"cannot read the Hub's token from {path}: {exc}",
            hint="Check the Secret that download.token names.",
        ) from exc
    if len(token.split()) != 1:
        raise UsageError(
            f"expected one token in {path}, found {len(token.split())} words",
            hint="The Secret's key holds the token alone.",
        )
    return token


async def _run(wanted: Wanted, progress_seconds: float) -> str:
    """Bring the model, with a line now and then; SIGTERM stops it, and what came is kept."""
    task = asyncio.ensure_future(_bring(wanted, progress_seconds))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise FetchCancelled("the download was stopped; it goes on where it was") from None


async def _bring(wanted: Wanted, progress_seconds: float) -> str:
    model = await resolve(wanted)
    facts = {"revision": model.revision, "size_bytes": model.size_bytes}
    _say({"state": "resolved", **facts})
    present_bytes = 0

    def progress(num_bytes: int) -> None:
        nonlocal present_bytes
        present_bytes = num_bytes

    filling = asyncio.ensure_future(fill(wanted, model, progress))
    try:
        while not (await asyncio.wait({filling}, timeout=progress_seconds))[0]:
            _say({"state": "downloading", **facts, "downloaded_bytes": present_bytes})
        checksum = await filling
    finally:
        filling.cancel()
    return _say({"state": "downloaded", **facts, "checksum": checksum})


def _say(line: dict[str, object]) -> str:
    text = json.dumps(line)
    print(text, flush=True)
    return text


def _is_final(error: ExoError) -> bool:
    if isinstance(error, SourceUnreachable | NoSpace | FetchCancelled):
        return False
    return isinstance(error, HubError | UsageError)


def _write_report(path: Path | None, text: str) -> None:
    if path is None:
        return
    try:
        path.write_text(text[:4000])  # Kubernetes keeps 4096 bytes of it
    except OSError as exc:
        print(f"exo-download: cannot write {path}: {exc}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

"""Fetches one file of the Hub so that nothing is fetched twice: resume, check, put in place.

The client's own `hf_hub_download` throws a partial file away when it fails, which for 40 GB over a
bad line means never; so this streams through the client's session and keeps what it has under a
name made of the content's hash. Runs in threads of `HuggingFaceSource.fetch`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

from exo_inference.errors import HubError
from exo_inference.hub.base import (
    FetchCancelled,
    ModelFile,
    ModelUnusable,
    NoSpace,
    ProgressCallback,
)
from exo_inference.hub.bounded_requests import Bound, TooSlow, bounded
from exo_inference.hub.huggingface_errors import HTTP_ERRORS

logger = logging.getLogger(__name__)

ROOM_HINT = "Make room: the download goes on by itself, from where it stopped"

_HASH_BLOCK_BYTES = 1024 * 1024
_REPORT_SECONDS = 0.1
LEAST_BYTES_PER_SECOND = 1024
"""A file that comes more slowly than this for as long as the Hub may be silent is given up, and gone on with as after
any other interruption. Weights of 1 GB would take twelve days."""

_MAX_IDLE_ATTEMPTS = 5
_MAX_WAIT_SECONDS = 16.0


class Progress:
    """Counts the bytes present, over all files and threads, and stops them when asked to."""

    def __init__(self, report: ProgressCallback, present_bytes: int) -> None:
        self._report = report
        self._bytes = present_bytes
        self._lock = threading.Lock()
        self._reported_at = 0.0
        self._stopped = threading.Event()
        self._under_way: set[Bound] = set()
        self._under_way_lock = threading.Lock()

    def stop(self) -> None:
        """Stop all threads; those that wait for the Hub are cut off."""
        self._stopped.set()
        with self._under_way_lock:
            for each in self._under_way:
                each.cut()

    @contextlib.contextmanager
    def stops(self, bound: Bound) -> Iterator[None]:
        """Have `stop` cut off the requests of the block."""
        with self._under_way_lock:
            self._under_way.add(bound)
        try:
            self.wait(0)
            yield
        finally:
            with self._under_way_lock:
                self._under_way.remove(bound)

    def add(self, num_bytes: int, *, now: bool = False) -> None:
        """Count bytes, negative ones for what was thrown away.

        Raises:
            FetchCancelled: the caller, or a failure in another thread, ends the fetch.
        """
        self.wait(0)
        with self._lock:
            self._bytes += num_bytes
            if now or time.monotonic() - self._reported_at >= _REPORT_SECONDS:
                self._reported_at = time.monotonic()
                self._report(self._bytes)

    def wait(self, seconds: float) -> None:
        """Wait, or raise FetchCancelled as soon as the fetch is stopped."""
        if self._stopped.wait(seconds):
            raise FetchCancelled("the fetch was stopped")


@dataclass(frozen=True, slots=True)
class Download:
    """One file to fetch.

    Attributes:
        headers: with the token; never shown.
        retry_seconds: wait before the first attempt after an interruption; doubles.
    """

    file: ModelFile
    url: str
    headers: Callable[[], dict[str, str]]
    target: Path
    partial: Path
    timeout_seconds: float
    retry_seconds: float


class Interrupted(Exception):
    """The connection ended early; going on from where it stopped may help."""


_BROKEN_LINE: tuple[type[Exception], ...] = (*HTTP_ERRORS, Interrupted, TooSlow)


def partial_name(file: ModelFile, revision: str) -> str:
    """Return a name that belongs to one file and one content: resuming never mixes two, and files of one content have one each."""
    content = file.sha256 or file.git_sha1 or revision
    key = hashlib.sha256(f"{content}\0{file.path}".encode()).hexdigest()
    return f"{key}.{file.size_bytes}.part"


def present_bytes(download: Download) -> int:
    """Return how much of a file is there already."""
    for path in (download.target, download.partial):
        with contextlib.suppress(OSError):
            return min(path.stat().st_size, download.file.size_bytes)
    return 0


def fetch_file(download: Download, progress: Progress) -> None:
    """Bring one file into place, checked. A damaged one is fetched once more from the start.

    Raises:
        ModelUnusable: it came damaged twice.
        NoSpace, FetchCancelled; errors of the HTTP library when the line stays broken.
    """
    for attempt in (1, 2):
        _fetch_partial(download, progress)
        found = hash_file(download.partial, download.file, progress)
        if found is None:
            download.target.parent.mkdir(parents=True, exist_ok=True)
            download.partial.replace(download.target)
            return
        logger.warning("%s came damaged (attempt %d): %s", download.file.path, attempt, found)
        size = download.partial.stat().st_size
        download.partial.unlink()
        progress.add(-size)
    raise ModelUnusable(
        f"{download.file.path} was fetched twice and came damaged both times: {found}",
        hint="Try again later; if it stays so, the file is broken at the source, or a proxy "
        "changes it.",
    )


def hash_file(path: Path, file: ModelFile, progress: Progress) -> str | None:
    """Compare a file's size and hash with what they should be; return the difference, if any."""
    size = path.stat().st_size
    if size != file.size_bytes:
        return f"{size} bytes instead of {file.size_bytes}"
    if file.sha256 is not None:
        digest, expected, name = hashlib.sha256(), file.sha256, "SHA-256"
    elif file.git_sha1 is not None:
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        expected, name = file.git_sha1, "git SHA-1"
    else:
        return None
    with path.open("rb") as opened:
        while block := opened.read(_HASH_BLOCK_BYTES):
            digest.update(block)
            progress.add(0)
    found = digest.hexdigest()
    return None if found == expected else f"{name} {found} instead of {expected}"


def _fetch_partial(download: Download, progress: Progress) -> None:
    """Complete the partial file; interruptions cost an attempt only when next to nothing came."""
    download.partial.parent.mkdir(parents=True, exist_ok=True)
    idle_attempts, begin = 0, time.monotonic()
    with _open_partial(download.partial) as output:
        while True:
            position = output.seek(0, os.SEEK_END)
            if position == download.file.size_bytes:
                return
            try:
                _stream(download, output, position, progress)
                continue
            except _BROKEN_LINE as error:
                progress.wait(0)  # who stops the fetch cuts the line, too
                if isinstance(error, HfHubHTTPError) and not _is_passing(error):
                    raise
                came, now = output.seek(0, os.SEEK_END) - position, time.monotonic()
                is_idle = came <= (now - begin) * LEAST_BYTES_PER_SECOND
                idle_attempts, begin = idle_attempts + 1 if is_idle else 0, now
                if idle_attempts >= _MAX_IDLE_ATTEMPTS:
                    raise
                logger.info("%s was interrupted and goes on", download.file.path)
            wait = download.retry_seconds * 2**idle_attempts
            progress.wait(min(wait, _MAX_WAIT_SECONDS))


def _is_passing(error: HfHubHTTPError) -> bool:
    status = error.response.status_code
    return status in (408, 416, 429) or status >= 500


def _stream(download: Download, output: FileIO, position: int, progress: Progress) -> None:
    """Append what comes from `position` on."""
    headers = {**download.headers(), "Accept-Encoding": "identity"}
    if position:
        headers["Range"] = f"bytes={position}-"
    with (
        bounded(download.timeout_seconds) as bound,
        progress.stops(bound),
        bound.client.stream(
            "GET",
            download.url,
            headers=headers,
            timeout=download.timeout_seconds,
        ) as response,
    ):
        if response.status_code == 416:
            _truncate(output, position, progress)  # what is there cannot be of this file
        hf_raise_for_status(response)  # which reads what an error says
        bound.watch_rate(LEAST_BYTES_PER_SECOND)  # a file may take its time
        if position and response.status_code != 206:
            _truncate(output, position, progress)  # the whole file comes again
            position = 0
        for block in response.iter_bytes():
            bound.count(len(block))
            position += len(block)
            if position > download.file.size_bytes:
                raise ModelUnusable(
                    f"{download.file.path} is longer at the source than the "
                    f"{download.file.size_bytes} bytes it should have"
                )
            _write(output, block, download.partial)
            progress.add(len(block))
    if position < download.file.size_bytes:
        raise Interrupted(f"the connection ended at {position} bytes")


def _truncate(output: FileIO, position: int, progress: Progress) -> None:
    output.truncate(0)
    output.seek(0)
    progress.add(-position)


def _write(output: FileIO, block: bytes, path: Path) -> None:
    try:
        view = memoryview(block)
        while view:
            view = view[output.write(view) :]
    except OSError as error:
        raise map_write_error(error, path) from error


@contextlib.contextmanager
def _open_partial(path: Path) -> Iterator[FileIO]:
    try:
        opened = path.open("ab", buffering=0)
    except OSError as error:
        raise map_write_error(error, path) from error
    with opened:
        yield opened


def map_write_error(error: OSError, path: Path) -> HubError:
    """Return our error for one of the file system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(
            f"disk full: {path.parent} has no room left for the model's files",
            hint=ROOM_HINT,
        )
    return HubError(f"cannot write to {path.parent}: {error.strerror}")

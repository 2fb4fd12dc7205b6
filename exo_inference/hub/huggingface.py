"""Models of the Hugging Face Hub, or of a mirror that speaks its protocol (`HF_ENDPOINT`).

`resolve` asks for the repository and tries one file, so that a missing, private or gated model is
refused before anything depends on it. `fetch` brings the chosen files of the pinned commit into a
directory, several at a time, and resumes. A token is used for a call and kept nowhere; a token that
the user has stored for other programs is never used, and nothing is written outside the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import huggingface_hub
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from exo_inference.errors import HubError
from exo_inference.hub.base import (
    PRIVATE_DIR,
    FetchCancelled,
    ModelFile,
    ModelUnusable,
    NoSpace,
    ProgressCallback,
    ResolvedModel,
    SourceUnreachable,
)
from exo_inference.hub.bounded_requests import TooSlow, bounded
from exo_inference.hub.download import (
    ROOM_HINT,
    Download,
    Interrupted,
    Progress,
    fetch_file,
    hash_file,
    map_write_error,
    partial_name,
    present_bytes,
)
from exo_inference.hub.gguf_files import split_tag
from exo_inference.hub.huggingface_errors import HTTP_ERRORS, Request, explain
from exo_inference.hub.huggingface_files import choose_files
from exo_inference.hub.model_directory import check_gguf_files, check_model_directory
from exo_inference.model_description import CONFIG_NAME
from exo_inference.state_dir import write_atomically

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_NUM_RESOLVING = 64
"""Models that are asked for at the same time. A question whose caller gave up keeps its thread until it ends."""
_RESOLVE_TIMEOUTS = 4
"""So many times as long as the Hub may be silent, all questions about one model may take together."""
_MAX_UNSIZED = 1000
"""Files whose size a mirror leaves out and that are asked for one by one; more take too long anyway."""
_resolving = ThreadPoolExecutor(_NUM_RESOLVING, thread_name_prefix="hub-resolve")

_LIBRARY = "exo-inference"
_LOCK_POLL_SECONDS = 0.2
_SPARE_BYTES = 16 * 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_CLIENT_ERRORS: tuple[type[Exception], ...] = (
    HfHubHTTPError,
    OfflineModeIsEnabled,
    Interrupted,
    TooSlow,
    *HTTP_ERRORS,
)


class HuggingFaceSource:
    """Serves `org/name` names, and `org/name:TYPE` for one GGUF file.

    Args:
        endpoint: of the Hub; None is what `HF_ENDPOINT` says, else huggingface.co.
        num_parallel: files fetched at once.
        timeout_seconds: how long the Hub may be silent.
        retry_seconds: wait before going on after an interruption; doubles.
    """

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        num_parallel: int = 4,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 1.0,
    ) -> None:
        self._endpoint = (endpoint or huggingface_hub.constants.ENDPOINT).rstrip("/")
        self._num_parallel = num_parallel
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        # The client tells the Hub which programs are installed, unless this is set.
        huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True

    async def resolve(
        self, source: str, *, revision: str | None, token: str | None
    ) -> ResolvedModel:
        """Find the model, try access to it, and pin its commit.

        Raises:
            ModelNotFound, ModelGated, TokenRejected, ModelUnusable, SourceUnreachable
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            _resolving, lambda: self._resolve(source, revision, token)
        )

    async def fetch(
        self,
        model: ResolvedModel,
        directory: Path,
        *,
        token: str | None,
        progress: ProgressCallback,
    ) -> Path:
        """Bring all files into `directory`, checked; resume what is there.

        A cancelled call stops its threads; what they fetched so far is kept.

        Raises:
            the errors of `resolve`, NoSpace, FetchCancelled
        """
        counter = Progress(progress, 0)
        try:
            return await _in_own_thread(lambda: self._fetch(model, directory, token, counter))
        finally:
            counter.stop()

    def _resolve(self, source: str, revision: str | None, token: str | None) -> ResolvedModel:
        limit = _RESOLVE_TIMEOUTS * self._timeout_seconds
        with self._explained(source, revision, token), bounded(limit):
            api = HfApi(endpoint=self._endpoint, token=token or False, library_name=_LIBRARY)
            info = api.model_info(
                split_tag(source)[0],
                revision=revision,
                files_metadata=True,
                timeout=self._timeout_seconds,
            )
            if not info.sha or info.siblings is None:
                raise SourceUnreachable(
                    f"{self._endpoint} does not answer as the Hugging Face Hub does",
                    hint="Check HF_ENDPOINT.",
                )
            files = choose_files(source, [_describe(sibling) for sibling in info.siblings])
            num_unsized = sum(not file.size_bytes for file in files)
            if num_unsized > _MAX_UNSIZED:
                raise ModelUnusable(
                    f"{self._endpoint} tells no size of {num_unsized} files of {source}; "
                    f"at most {_MAX_UNSIZED} are asked for one by one"
                )
            first = next((file for file in files if file.path == CONFIG_NAME), files[0])
            self._complete(source, info.sha, first, token)  # tries access, too
            completed = tuple(
                file if file.size_bytes else self._complete(source, info.sha, file, token)
                for file in files
            )
        return ResolvedModel(source, info.sha, completed)

    def _complete(self, source: str, commit: str, file: ModelFile, token: str | None) -> ModelFile:
        """Ask for one file's size and hash, as mirrors need that leave them out of the list."""
        repository, _ = split_tag(source)
        url = hf_hub_url(repository, file.path, revision=commit, endpoint=self._endpoint)
        metadata = get_hf_file_metadata(
            url,
            token=token or False,
            timeout=self._timeout_seconds,
            endpoint=self._endpoint,
            library_name=_LIBRARY,
        )
        etag = metadata.etag or ""
        return dataclasses.replace(
            file,
            size_bytes=metadata.size or 0,
            sha256=etag if _SHA256.fullmatch(etag) else file.sha256,
            git_sha1=etag if _SHA1.fullmatch(etag) else file.git_sha1,
        )

    def _fetch(
        self, model: ResolvedModel, directory: Path, token: str | None, progress: Progress
    ) -> Path:
        private = directory / PRIVATE_DIR
        with self._explained(model.source, model.revision, token, directory):
            private.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(private / "lock", progress):
                manifest = _Manifest(private / "verified.json", directory)
                missing = [file for file in model.files if not manifest.has(file)]
                downloads = [self._download_of(model, file, directory, token) for file in missing]
                missing_bytes = sum(file.size_bytes for file in missing)
                present = sum(present_bytes(item) for item in downloads)
                _check_space(directory, missing_bytes - present)
                progress.add(model.size_bytes - missing_bytes + present, now=True)
                self._fetch_all(downloads, manifest, progress)
                if split_tag(model.source)[1]:
                    check_gguf_files(directory, model.files)
                else:
                    check_model_directory(directory)
                manifest.keep_only(model.files)
                shutil.rmtree(private / "partial", ignore_errors=True)
                progress.add(0, now=True)
        return directory

    def _fetch_all(
        self, downloads: Sequence[Download], manifest: _Manifest, progress: Progress
    ) -> None:
        """Fetch several files at once; the first failure stops the others."""
        with ThreadPoolExecutor(self._num_parallel, thread_name_prefix="model-fetch") as pool:
            futures = [pool.submit(_ensure, item, manifest, progress) for item in downloads]
            wait(futures, return_when=FIRST_EXCEPTION)
            failed = [f for f in futures if f.done() and not f.cancelled() and f.exception()]
            if failed:
                progress.stop()
                for future in futures:
                    future.cancel()
        errors = [future.exception() for future in failed]
        for error in sorted(errors, key=lambda error: isinstance(error, FetchCancelled)):
            if error is not None:
                raise error

    def _download_of(
        self, model: ResolvedModel, file: ModelFile, directory: Path, token: str | None
    ) -> Download:
        partial_dir = directory / PRIVATE_DIR / "partial"
        return Download(
            file=file,
            url=hf_hub_url(
                split_tag(model.source)[0],
                file.path,
                revision=model.revision,
                endpoint=self._endpoint,
            ),
            headers=lambda: build_hf_headers(token=token or False, library_name=_LIBRARY),
            target=directory / file.path,
            partial=partial_dir / partial_name(file, model.revision),
            timeout_seconds=self._timeout_seconds,
            retry_seconds=self._retry_seconds,
        )

    @contextlib.contextmanager
    def _explained(
        self, source: str, revision: str | None, token: str | None, directory: Path | None = None
    ) -> Iterator[None]:
        """Turn the errors of the client, and of writing to `directory`, into ours."""
        request = Request(source, revision, self._endpoint, has_token=token is not None)
        try:
            yield
        except HubError:
            raise
        except _CLIENT_ERRORS as error:
            raise explain(error, request) from error
        except OSError as error:
            if directory is None:
                raise explain(error, request) from error
            raise map_write_error(error, directory) from error
        except (ValueError, TypeError, KeyError) as error:
            # Whatever is at the endpoint answered something else than the Hub would.
            raise explain(error, request) from error


class _Manifest:
    """Which files were checked: a second fetch of the same files needs no network and no hashing."""

    def __init__(self, path: Path, directory: Path) -> None:
        self._path = path
        self._directory = directory
        self._lock = threading.Lock()
        self._entries: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            document = json.loads(path.read_text())
            self._entries = document if isinstance(document, dict) else {}

    def has(self, file: ModelFile) -> bool:
        """Whether the file was checked and has not changed since."""
        with contextlib.suppress(OSError):
            return self._entries.get(file.path) == self._entry(file)
        return False

    def add(self, file: ModelFile) -> None:
        """Remember a checked file. Called from several threads."""
        with self._lock:
            self._entries[file.path] = self._entry(file)
            self._save()

    def keep_only(self, files: Sequence[ModelFile]) -> None:
        """Remove files that an earlier revision had, and save."""
        wanted = {file.path for file in files}
        for name in set(self._entries) - wanted:
            (self._directory / name).unlink(missing_ok=True)
        self._entries = {name: entry for name, entry in self._entries.items() if name in wanted}
        self._save()

    def _save(self) -> None:
        write_atomically(self._path, json.dumps(self._entries))

    def _entry(self, file: ModelFile) -> list[Any]:
        status = (self._directory / file.path).stat()
        return [status.st_size, status.st_mtime_ns, file.sha256 or file.git_sha1]


async def _in_own_thread(work: Callable[[], _Result]) -> _Result:
    """Run blocking work apart from the loop's few shared threads, which a slow Hub would fill."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="hub")
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, work)
    finally:
        executor.shutdown(wait=False)


def _ensure(download: Download, manifest: _Manifest, progress: Progress) -> None:
    """Fetch one file, unless it lies there complete from before a kill."""
    if download.target.exists():
        difference = hash_file(download.target, download.file, progress)
        if difference is None:
            manifest.add(download.file)
            return
        size = download.target.stat().st_size
        download.target.unlink()
        progress.add(-min(size, download.file.size_bytes))
    fetch_file(download, progress)
    manifest.add(download.file)


def _describe(sibling: Any) -> ModelFile:
    lfs = sibling.lfs
    return ModelFile(
        path=sibling.rfilename,
        size_bytes=(lfs.size if lfs else None) or sibling.size or 0,
        sha256=lfs.sha256 if lfs else None,
        git_sha1=None if lfs else sibling.blob_id,
    )


def _check_space(directory: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(directory).free
    if needed_bytes > 0 and needed_bytes + _SPARE_BYTES > free:
        raise NoSpace(
            f"disk full: {needed_bytes + _SPARE_BYTES} bytes must be free in {directory} "
            f"({needed_bytes} for the rest of the model and {_SPARE_BYTES} in reserve), "
            f"found {free}",
            hint=ROOM_HINT,
        )


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Keep two fetches out of one directory, such as one that is still being stopped."""
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress.wait(_LOCK_POLL_SECONDS)
        yield

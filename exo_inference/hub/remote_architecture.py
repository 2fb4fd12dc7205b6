"""What a model of the Hub is, for the planner, without fetching its weights.

Only config.json, hf_quant_config.json, the index and the headers of the safetensors files are fetched,
and `foreign_files` reads them in a child process. Called by `architecture.py` alone, which loads this
module and huggingface_hub with it when the Hub is asked for the first time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import huggingface_hub
from huggingface_hub import hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    hf_raise_for_status,
)

from exo_inference import foreign_files
from exo_inference.errors import HubError
from exo_inference.foreign_files import RemoteDescription
from exo_inference.foreign_files.safetensors import MAX_HEADER_BYTES
from exo_inference.hub.base import ModelUnusable, SourceUnreachable
from exo_inference.hub.bounded_requests import Bound, TooSlow, bounded
from exo_inference.hub.gguf_files import split_tag
from exo_inference.hub.huggingface_errors import HTTP_ERRORS, Request, explain
from exo_inference.hub.model_directory import explained
from exo_inference.model_description import (
    CONFIG_NAME,
    INDEX_NAME,
    MAX_CONFIG_BYTES,
    MAX_INDEX_BYTES,
    QUANTIZATION_NAME,
)
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.name_words import type_of_tag
from exo_inference.planner.model.requantize import with_quantization

T = TypeVar("T")

_CLIENT_ERRORS: tuple[type[Exception], ...] = (
    HfHubHTTPError,
    OfflineModeIsEnabled,
    OSError,
    TooSlow,
    *HTTP_ERRORS,
)
_UNUSABLE_HEADER: tuple[type[Exception], ...] = (
    HubError,
    ValueError,
    *_CLIENT_ERRORS,
)

_MAX_HEADERS_BYTES = 64 * 2**20
"""Of all headers of a model together; the largest models in use have half of it."""
_FIRST_BYTES = 512 * 1024
"""Of each weight file: holds the whole header of most, so that one request is enough."""
_NUM_PARALLEL = 8
_NUM_FETCHING = 4
"""Models that are asked for at the same time; others wait, and no other work of the process does."""
_fetching = ThreadPoolExecutor(_NUM_FETCHING, thread_name_prefix="model-fetching")


async def fetch(
    name: str, revision: str | None, token: str | None, endpoint: str | None, timeout_seconds: float
) -> Architecture:
    """Return the architecture of a model of the Hub; see `architecture.fetch_architecture`."""
    address = (endpoint or huggingface_hub.constants.ENDPOINT).rstrip("/")
    deadline = time.monotonic() + timeout_seconds
    repository, tag = split_tag(name)
    remote = _Remote(repository, revision, token, address, deadline)
    try:
        async with asyncio.timeout(timeout_seconds):
            found = await remote.read()
            return in_gguf(found, name, tag) if tag else found
    except TimeoutError as error:
        raise SourceUnreachable(
            f"the Hub at {address} did not answer within {timeout_seconds:.0f} s",
            hint="Check the network, the proxy (HTTPS_PROXY) and HF_ENDPOINT.",
        ) from error


def in_gguf(model: Architecture, name: str, tag: str) -> Architecture:
    """Return the model of a repository's config in the type of its GGUF file.

    Raises:
        ModelUnusable: what that type takes is not known.
    """
    mix = type_of_tag(tag)
    if mix is None:
        raise ModelUnusable(f"{name}: what GGUF files of the type {tag} take is not known")
    return replace(with_quantization(model, mix), name=name)


@dataclass(frozen=True, slots=True)
class _Remote:
    """One model of the Hub, asked for until `deadline` (monotonic)."""

    name: str
    revision: str | None
    token: str | None
    endpoint: str
    deadline: float

    async def read(self) -> Architecture:
        """Ask for everything. No thread waits for the children that read it.

        Raises:
            HubError
        """
        files = await self._fetch(self._small_files)
        found = await self._describe(files, ())
        headers = await self._fetch(lambda bound: self._headers(bound, found.shards))
        return (
            (await self._describe(files, headers)).architecture if headers else found.architecture
        )

    async def _fetch(self, what: Callable[[Bound], T]) -> T:
        """Fetch something in a thread of this module, with connections of its own.

        Raises:
            HubError
        """

        def within() -> T:
            with bounded(self.deadline - time.monotonic()) as bound:
                return what(bound)

        try:
            return await asyncio.get_running_loop().run_in_executor(_fetching, within)
        except HubError:
            raise
        except _CLIENT_ERRORS as error:
            request = Request(self.name, self.revision, self.endpoint, self.token is not None)
            raise explain(error, request) from error

    def _small_files(self, bound: Bound) -> dict[str, bytes]:
        files = {CONFIG_NAME: self._get(bound, CONFIG_NAME, MAX_CONFIG_BYTES)}
        for name, most in ((QUANTIZATION_NAME, MAX_CONFIG_BYTES), (INDEX_NAME, MAX_INDEX_BYTES)):
            content = self._try_get(bound, name, most)
            if content is not None:
                files[name] = content
        return files

    async def _describe(
        self, files: dict[str, bytes], headers: Sequence[bytes]
    ) -> RemoteDescription:
        try:
            with explained():
                return await foreign_files.describe_remote_async(
                    files, headers, name=self.name, source=f"{self.endpoint}/{self.name}"
                )
        except ModelUnusable as error:
            raise ModelUnusable(f"{self.name}: {error.message}", hint=error.hint) from error

    def _headers(self, bound: Bound, shards: Sequence[str]) -> list[bytes]:
        """Return the headers of all weight files, or nothing where one of them cannot be had."""
        if not shards:
            return []
        with ThreadPoolExecutor(_NUM_PARALLEL, thread_name_prefix="model-headers") as pool:
            tried = pool.map(lambda shard: self._try_header(bound, shard), shards)
            found = [each for each in tried if each is not None]
        is_whole = len(found) == len(shards)
        return found if is_whole and sum(map(len, found)) <= _MAX_HEADERS_BYTES else []

    def _try_header(self, bound: Bound, file: str) -> bytes | None:
        """Return the JSON of one weight file's header, None where it cannot be had."""
        try:
            first = self._get(bound, file, MAX_HEADER_BYTES, num_bytes=_FIRST_BYTES)
            length = 8 + int.from_bytes(first[:8], "little")
            if len(first) < length <= MAX_HEADER_BYTES:
                first = self._get(bound, file, MAX_HEADER_BYTES, num_bytes=length)
        except _UNUSABLE_HEADER:
            return None
        return first[8:length] if 8 < length <= len(first) else None

    def _try_get(self, bound: Bound, file: str, max_bytes: int) -> bytes | None:
        try:
            return self._get(bound, file, max_bytes)
        except EntryNotFoundError:
            return None

    def _get(
        self, bound: Bound, file: str, max_bytes: int, *, num_bytes: int | None = None
    ) -> bytes:
        """Return a file, or its first bytes.

        Raises:
            ModelUnusable: it is larger than anything of its kind.
        """
        url = hf_hub_url(self.name, file, revision=self.revision, endpoint=self.endpoint)
        headers = build_hf_headers(token=self.token or False, library_name="exo-inference")
        if num_bytes is not None:
            headers["Range"] = f"bytes=0-{num_bytes - 1}"
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TooSlow("no time is left")
        most = max_bytes if num_bytes is None else num_bytes
        content = bytearray()
        with bound.client.stream("GET", url, headers=headers, timeout=seconds) as response:
            hf_raise_for_status(response)
            is_part = response.status_code == 206  # read to its end: the connection is used again
            for block in response.iter_bytes():
                content += block
                if num_bytes is not None and len(content) >= most + is_part:
                    break  # a server without ranges sends the whole file
                if len(content) > most:
                    raise ModelUnusable(f"{file} of {self.name} is larger than {most} bytes")
        return bytes(content[:most])

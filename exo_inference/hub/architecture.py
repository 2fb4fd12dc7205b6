"""What a model is, for the planner: from its directory, or from the Hub without fetching it.

Only config.json, hf_quant_config.json, the index and the headers of the safetensors files are read.
The controller calls both ways; what they return may carry `cannot_size`, which is no error here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import get_session, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    hf_raise_for_status,
)

from exo_inference.errors import HubError
from exo_inference.hub.base import ModelUnusable, SourceUnreachable
from exo_inference.hub.huggingface_errors import HTTP_ERRORS, Request, explain
from exo_inference.model_description import (
    CONFIG_NAME,
    INDEX_NAME,
    MAX_CONFIG_BYTES,
    MAX_INDEX_BYTES,
    QUANTIZATION_NAME,
    DescriptionError,
    describe,
    parse_object,
    read_config,
    read_quantization,
    with_checkpoint,
)
from exo_inference.planner import (
    Architecture,
    TensorSize,
    parse_safetensors_header,
    with_index,
    with_tensors,
)

_SINGLE_FILE = "model.safetensors"

_CLIENT_ERRORS: tuple[type[Exception], ...] = (
    HfHubHTTPError,
    OfflineModeIsEnabled,
    OSError,
    *HTTP_ERRORS,
)
_UNUSABLE_HEADER: tuple[type[Exception], ...] = (
    HubError,
    ValueError,
    *_CLIENT_ERRORS,
)

_MAX_HEADER_BYTES = 20_000_000
"""Less than the format allows: more would take too long to ask for."""
_FIRST_BYTES = 512 * 1024
"""Of each weight file: holds the whole header of most, so that one request is enough."""
_MAX_SHARDS = 64
"""Above it the index's total is taken, because so many headers take too long to ask for."""
_NUM_PARALLEL = 8


def read_directory(directory: Path, name: str) -> Architecture:
    """Return the architecture of a model whose files are here.

    Weights that are damaged do not count: that is said when they are loaded.

    Raises:
        ModelUnusable: there is no config.json that can be read.
    """
    try:
        config, quantization = read_config(directory), read_quantization(directory)
    except DescriptionError as error:
        raise ModelUnusable(str(error)) from error
    found = describe(config, quantization, name, str(directory / CONFIG_NAME))
    try:
        return with_checkpoint(found, directory)
    except DescriptionError:
        return found


async def fetch_architecture(
    name: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    timeout_seconds: float = 8.0,
) -> Architecture:
    """Return the architecture of a model of the Hub; its weights stay there.

    Args:
        name: ORG/NAME.
        revision: a branch, a tag or a commit.
        token: of the Hub; None asks without one, also where the user has stored one.
        endpoint: of the Hub; None is what `HF_ENDPOINT` says, else huggingface.co.
        timeout_seconds: for all of it together.

    Raises:
        HubError: the Hub cannot be asked, or does not show this model.
    """
    address = (endpoint or huggingface_hub.constants.ENDPOINT).rstrip("/")
    deadline = time.monotonic() + timeout_seconds
    remote = _Remote(name, revision, token, address, deadline)
    try:
        async with asyncio.timeout(timeout_seconds):
            return await asyncio.to_thread(remote.read)
    except TimeoutError as error:
        raise SourceUnreachable(
            f"the Hub at {address} did not answer within {timeout_seconds:.0f} s",
            hint="Check the network, the proxy (HTTPS_PROXY) and HF_ENDPOINT.",
        ) from error


@dataclass(frozen=True, slots=True)
class _Remote:
    """One model of the Hub, asked for until `deadline` (monotonic)."""

    name: str
    revision: str | None
    token: str | None
    endpoint: str
    deadline: float

    def read(self) -> Architecture:
        """Ask for everything.

        Raises:
            HubError
        """
        request = Request(self.name, self.revision, self.endpoint, self.token is not None)
        try:
            return self._read()
        except HubError:
            raise
        except DescriptionError as error:
            raise ModelUnusable(f"{self.name}: {error}") from error
        except _CLIENT_ERRORS as error:
            raise explain(error, request) from error

    def _read(self) -> Architecture:
        config = parse_object(self._get(CONFIG_NAME, MAX_CONFIG_BYTES), CONFIG_NAME)
        quantization = self._try_object(QUANTIZATION_NAME, MAX_CONFIG_BYTES)
        found = describe(config, quantization, self.name, f"{self.endpoint}/{self.name}")
        if found.cannot_size is not None:
            return found
        return self._with_weights(found, self._try_object(INDEX_NAME, MAX_INDEX_BYTES))

    def _with_weights(self, found: Architecture, index: Mapping[str, Any] | None) -> Architecture:
        shards = [_SINGLE_FILE]
        if index is not None:
            weight_map = index.get("weight_map")
            names = weight_map.values() if isinstance(weight_map, dict) else ()
            shards = sorted({str(name) for name in names})
        headers: list[list[TensorSize] | None] = [None]
        if len(shards) <= _MAX_SHARDS:
            with ThreadPoolExecutor(_NUM_PARALLEL, thread_name_prefix="model-headers") as pool:
                headers = list(pool.map(self._header, shards))
        tensors = [tensor for header in headers for tensor in header or ()]
        if tensors and None not in headers:
            return with_tensors(found, tensors)
        return found if index is None else with_index(found, index)

    def _header(self, file: str) -> list[TensorSize] | None:
        """Return the tensors of one weight file, None where its header cannot be had."""
        try:
            first = self._get(file, _MAX_HEADER_BYTES, num_bytes=_FIRST_BYTES)
            length = 8 + int.from_bytes(first[:8], "little")
            if len(first) < length <= _MAX_HEADER_BYTES:
                first = self._get(file, _MAX_HEADER_BYTES, num_bytes=length)
            return parse_safetensors_header(first)
        except _UNUSABLE_HEADER:
            return None

    def _try_object(self, file: str, max_bytes: int) -> dict[str, Any] | None:
        try:
            return parse_object(self._get(file, max_bytes), file)
        except EntryNotFoundError:
            return None

    def _get(self, file: str, max_bytes: int, *, num_bytes: int | None = None) -> bytes:
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
            raise TimeoutError("no time is left")
        most = max_bytes if num_bytes is None else num_bytes
        content = bytearray()
        session = get_session()
        with session.stream(
            "GET", url, headers=headers, timeout=seconds, follow_redirects=True
        ) as response:
            hf_raise_for_status(response)
            for block in response.iter_bytes():
                content += block
                if len(content) >= most and num_bytes is not None:
                    break  # a server without ranges sends the whole file
                if len(content) > most:
                    raise ModelUnusable(f"{file} of {self.name} is larger than {most} bytes")
                if time.monotonic() > self.deadline:
                    raise TimeoutError(f"{file} came too slowly")
        return bytes(content[:most])

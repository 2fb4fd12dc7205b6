"""Carries requests to the API over httpx, and repeats them where that is safe.

Two small twins, `Transport` and `AsyncTransport`, over shared pure parts. Every exception of httpx
becomes `ConnectionFailed` here; nothing else of the SDK imports it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import httpx
from tenacity import AsyncRetrying, BaseRetrying, RetryCallState, Retrying

from exo_inference import __version__
from exo_inference.errors import ConnectionFailed, UsageError
from exo_inference.line_splitter import async_lines_of, lines_of
from exo_inference.sdk import _retries, _trace
from exo_inference.sdk._deadline import GRACE_SECONDS, run_within
from exo_inference.sdk._messages import Request, Response
from exo_inference.sdk.signing import EXPIRY_SECONDS, Credentials, sign

SyncHandler = httpx.BaseTransport
AsyncHandler = httpx.AsyncBaseTransport

DEFAULT_TIMEOUT_SECONDS = 60.0
MAX_CONNECT_SECONDS = 10.0
MIN_STEP_SECONDS = 0.001
"""A limit of zero or less would be no limit, or refuse what can be had at once."""
STREAM_TIMEOUT_SECONDS = 90.0
"""How long a followed log may be silent before the connection counts as dead and is made anew."""

_NO_PROXY: Mapping[str, None] = {
    "all://127.0.0.1": None,
    "all://localhost": None,
    "all://[::1]": None,
}
"""A proxy of the environment cannot reach this machine's own addresses; Go's clients know that too."""

_NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.ProxyError,
)


SIGNATURE_SPREAD_SECONDS = 300
"""Expiry is in whole seconds, and a server takes a write with the signature of another for its repeat. So
the signatures of equal writes of one second end to hold at different times."""

_WRITES = itertools.count(secrets.randbelow(SIGNATURE_SPREAD_SECONDS))


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """What every request of one client has in common."""

    credentials: Credentials
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Of one request with all its repeats; infinity means none."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    trace: bool = False

    def new_expiry(self, request: Request) -> int:
        """Return when a request expires, and all attempts at it.

        They have one signature, so that a server knows a repeat, and answers it as the attempt before, whose
        answer was lost.
        """
        expires = int(time.time()) + EXPIRY_SECONDS
        if request.method == "GET":
            return expires
        # It grows like the clock: subtracting would let the two make up for each other.
        return expires + next(_WRITES) % SIGNATURE_SPREAD_SECONDS - SIGNATURE_SPREAD_SECONDS

    def headers_for(self, request: Request, url: str, expires: int) -> dict[str, str]:
        """Return the headers of an attempt."""
        headers = dict(self.headers)
        headers |= {"User-Agent": f"exo-inference/{__version__}", "Accept": "application/json"}
        headers |= dict(request.headers)
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        if request.signed:
            headers["Authorization"] = sign(
                self.credentials,
                request.method,
                urlsplit(url).path,
                request.query,
                request.body or b"",
                expires=expires,
            )
        return headers


class Transport:
    """Carries requests and blocks meanwhile."""

    def __init__(self, options: HttpOptions, handler: SyncHandler | None = None) -> None:
        self.options = options
        self.monotonic: Callable[[], float] = time.monotonic
        self.sleep: Callable[[float], None] = time.sleep
        self._client = httpx.Client(
            timeout=_limits(options.timeout_seconds),
            transport=handler,
            verify=_tls(),
            mounts=dict(_NO_PROXY),
        )

    def send(self, endpoint: str, request: Request) -> Response:
        """Send a request and return the answer, whatever its status.

        Raises:
            ConnectionFailed: there was none.
        """
        end = self.monotonic() + self.options.timeout_seconds
        retrying = Retrying(
            sleep=self.sleep,
            stop=_retries.should_stop(end, self.monotonic),
            wait=_retries.wait_seconds,
            retry=_retries.should_repeat(request),
            retry_error_callback=_last_outcome,
        )
        expires = self.options.new_expiry(request)
        return _noted(retrying(self._attempt, endpoint, request, expires, end), retrying)

    def _attempt(self, endpoint: str, request: Request, expires: int, end: float) -> Response:
        with _mapped(request, endpoint, self.options.trace):
            seconds = end - self.monotonic()
            limits = _limits(seconds)
            built = _build(self._client, self.options, endpoint, request, expires, limits)
            answer = run_within(seconds, lambda: self._client.send(built))
        return _read(answer, self.options.trace)

    @contextmanager
    def stream(self, endpoint: str, request: Request) -> Iterator[tuple[Response, Iterator[str]]]:
        """Open a long answer: its head, and its lines as they come.

        The body of an error is read into the head; it has no lines.
        """
        with _mapped(request, endpoint, self.options.trace):
            expires = self.options.new_expiry(request)
            limits = _limits(self.options.timeout_seconds, read_seconds=STREAM_TIMEOUT_SECONDS)
            built = _build(self._client, self.options, endpoint, request, expires, limits)
            answer = self._client.send(built, stream=True)
            try:
                if answer.status_code >= 300:
                    answer.read()
                yield _head(answer, self.options.trace), lines_of(answer.iter_bytes())
            finally:
                answer.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class AsyncTransport:
    """Carries requests without blocking the event loop."""

    def __init__(self, options: HttpOptions, handler: AsyncHandler | None = None) -> None:
        self.options = options
        self.monotonic: Callable[[], float] = time.monotonic
        self.sleep = asyncio.sleep
        self._client = httpx.AsyncClient(
            timeout=_limits(options.timeout_seconds),
            transport=handler,
            verify=_tls(),
            mounts=dict(_NO_PROXY),
        )

    async def send(self, endpoint: str, request: Request) -> Response:
        """Send a request and return the answer, whatever its status.

        Raises:
            ConnectionFailed: there was none.
        """
        end = self.monotonic() + self.options.timeout_seconds
        retrying = AsyncRetrying(
            sleep=self.sleep,
            stop=_retries.should_stop(end, self.monotonic),
            wait=_retries.wait_seconds,
            retry=_retries.should_repeat(request),
            retry_error_callback=_last_outcome,
        )
        expires = self.options.new_expiry(request)
        return _noted(await retrying(self._attempt, endpoint, request, expires, end), retrying)

    async def _attempt(self, endpoint: str, request: Request, expires: int, end: float) -> Response:
        with _mapped(request, endpoint, self.options.trace):
            seconds = end - self.monotonic()
            limits = _limits(seconds)
            built = _build(self._client, self.options, endpoint, request, expires, limits)
            async with asyncio.timeout(None if math.isinf(seconds) else seconds + GRACE_SECONDS):
                answer = await self._client.send(built)
        return _read(answer, self.options.trace)

    @asynccontextmanager
    async def stream(
        self, endpoint: str, request: Request
    ) -> AsyncIterator[tuple[Response, AsyncIterator[str]]]:
        """Open a long answer: its head, and its lines as they come.

        The body of an error is read into the head; it has no lines.
        """
        with _mapped(request, endpoint, self.options.trace):
            expires = self.options.new_expiry(request)
            limits = _limits(self.options.timeout_seconds, read_seconds=STREAM_TIMEOUT_SECONDS)
            built = _build(self._client, self.options, endpoint, request, expires, limits)
            answer = await self._client.send(built, stream=True)
            try:
                if answer.status_code >= 300:
                    await answer.aread()
                yield _head(answer, self.options.trace), async_lines_of(answer.aiter_bytes())
            finally:
                await answer.aclose()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return the trust store; reading it takes longer than a request, so it is read once."""
    return httpx.create_ssl_context()


def _build(
    client: httpx.Client | httpx.AsyncClient,
    options: HttpOptions,
    endpoint: str,
    request: Request,
    expires: int,
    timeout: httpx.Timeout,
) -> httpx.Request:
    if client.is_closed:
        raise UsageError(f"{request.action}: this client is closed", hint="Make a new one.")
    url = endpoint + request.target
    headers = options.headers_for(request, url, expires)
    if options.trace:
        _trace.trace_request(request.method, url, headers, request.body or b"")
    return client.build_request(
        request.method, url, content=request.body, headers=headers, timeout=timeout
    )


def _limits(seconds: float, *, read_seconds: float | None = None) -> httpx.Timeout:
    """Return the limit of each step of one attempt; infinity means none."""
    limit = None if math.isinf(seconds) else max(seconds, MIN_STEP_SECONDS)
    return httpx.Timeout(
        limit,
        connect=None if limit is None else min(limit, MAX_CONNECT_SECONDS),
        read=limit if read_seconds is None else read_seconds,
    )


def _read(answer: httpx.Response, trace: bool) -> Response:
    response = Response(answer.status_code, _lower_headers(answer), answer.content)
    if trace:
        _trace.trace_response(response)
    return response


def _head(answer: httpx.Response, trace: bool) -> Response:
    body = answer.content if answer.status_code >= 300 else b""
    response = Response(answer.status_code, _lower_headers(answer), body)
    if trace:
        _trace.trace_response(response)
    return response


def _lower_headers(answer: httpx.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}


def _noted(response: Response, retrying: BaseRetrying) -> Response:
    """Note on an answer whether the request had been sent before."""
    if retrying.statistics.get("attempt_number", 1) > 1:
        return replace(response, repeated=True)
    return response


def _last_outcome(state: RetryCallState) -> Response:
    assert state.outcome is not None, "tenacity calls this after the last attempt"
    response: Response = state.outcome.result()  # raises what the last attempt raised
    return response


@contextmanager
def _mapped(request: Request, endpoint: str, trace: bool) -> Iterator[None]:
    """Turn every exception of the HTTP library into ours, the most telling one wins."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as exc:
        raise UsageError(f"{request.action}: {endpoint!r} is not a usable endpoint: {exc}") from exc
    except (httpx.LocalProtocolError, UnicodeError) as exc:
        # The exception's own text repeats the value, which may be a credential.
        raise UsageError(
            f"{request.action}: a header holds characters that HTTP does not allow",
            hint="Look at the API key and at customHeaders for line breaks and accents.",
        ) from exc
    except (httpx.HTTPError, httpx.StreamError, ssl.SSLError, OSError) as exc:
        if trace:
            _trace.trace_failure(f"{type(exc).__name__}: {exc}")
        raise _connection_failed(request, endpoint, exc) from exc


def _connection_failed(request: Request, endpoint: str, exc: Exception) -> ConnectionFailed:
    address = urlsplit(endpoint).netloc
    sent = not isinstance(exc, _NEVER_SENT)
    if isinstance(exc, httpx.TimeoutException | TimeoutError):
        what = f"{address} did not {'answer' if sent else 'accept the connection'} in time"
        hint = "Repeat it, or allow more time with --timeout."
    elif sent:
        what = f"the connection to {address} broke: {str(exc) or type(exc).__name__}"
        hint = "Repeat it; if it goes on, look at the log of the control plane."
    else:
        what = f"cannot connect to {address}: {str(exc) or type(exc).__name__}"
        hint = "Is it running? Run `exo dedicated-inference status`, or check the endpoint."
    if sent and not request.repeatable:
        what += " (the request may have been carried out)"
    return ConnectionFailed(f"{request.action}: {what}", request_sent=sent, hint=hint)

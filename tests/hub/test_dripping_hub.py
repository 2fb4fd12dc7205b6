"""A Hub that sends a byte now and then, for ever: no thread of ours is held by it."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from exo_inference.hub import bounded_requests, huggingface, remote_architecture
from exo_inference.hub.base import ModelFile, ResolvedModel, SourceUnreachable
from exo_inference.hub.bounded_requests import Bound, TooSlow, bounded
from exo_inference.hub.download import LEAST_BYTES_PER_SECOND
from exo_inference.hub.huggingface import HuggingFaceSource
from exo_inference.hub.remote_architecture import fetch

LIMIT = 0.1
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
WHERE = {
    "header": HEAD + b"X-Slow: ",
    "body": HEAD + b"Content-Length: 1000000\r\n\r\n",
    "body without a length": HEAD + b"\r\n",
}


ANSWERS_TO_A_FILE = {
    "error body": b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000\r\n\r\n",
    "chunk extension": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;",
}
MODEL = ResolvedModel("org/model", "0" * 40, (ModelFile("config.json", 1_000_000, None, None),))


class Dripping:
    """A server that answers each request with a beginning, and then one byte after another."""

    def __init__(self, begin: bytes, context: ssl.SSLContext | None = None) -> None:
        self._begin, self._context = begin, context
        self._ended = threading.Event()
        self.was_asked, self.was_hung_up_on = threading.Event(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(client,)))
            self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._context is not None:
                client = self._context.wrap_socket(client, server_side=True)
            client.recv(65536)
            client.sendall(self._begin)
            self.was_asked.set()
            while not self._ended.wait(0.01):
                client.sendall(b"a")
        except OSError:
            self.was_hung_up_on.set()
        finally:
            client.close()

    def close(self) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._threads:
            each.join()


@pytest.fixture(params=WHERE)
def hub(request: pytest.FixtureRequest) -> Iterator[Dripping]:
    server = Dripping(WHERE[request.param])
    yield server
    server.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server with a certificate of its own making needs, and a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path: Path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context, ssl.create_default_context(cafile=path)


@pytest.mark.timeout(60)
async def test_a_model_is_not_looked_for_without_end(
    hub: Dripping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "_RESOLVE_TIMEOUTS", LIMIT / 30)
    source = HuggingFaceSource(endpoint=f"http://127.0.0.1:{hub.port}")
    with pytest.raises(SourceUnreachable):
        await source.resolve("org/model", revision=None, token=None)


@pytest.mark.timeout(60)
async def test_the_thread_that_asked_for_an_architecture_is_free_again(hub: Dripping) -> None:
    endpoint = f"http://127.0.0.1:{hub.port}"
    for _ in range(3):
        with pytest.raises(SourceUnreachable):
            await fetch("org/model", None, None, endpoint, LIMIT)
    # All threads at once: the caller's own limit frees none.
    all_free = threading.Barrier(remote_architecture._NUM_FETCHING + 1, timeout=30)
    for _ in range(remote_architecture._NUM_FETCHING):
        remote_architecture._fetching.submit(all_free.wait)
    await asyncio.to_thread(all_free.wait)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", [*WHERE, *ANSWERS_TO_A_FILE])
async def test_a_file_that_drips_is_given_up(tmp_path: Path, where: str) -> None:
    server = Dripping((WHERE | ANSWERS_TO_A_FILE)[where])
    try:
        source = HuggingFaceSource(
            endpoint=f"http://127.0.0.1:{server.port}", timeout_seconds=LIMIT, retry_seconds=0.001
        )
        with pytest.raises(SourceUnreachable):
            await source.fetch(MODEL, tmp_path, token=None, progress=lambda _: None)
    finally:
        server.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", ANSWERS_TO_A_FILE)
async def test_a_fetch_that_is_cancelled_hangs_up_on_a_hub_that_drips(
    tmp_path: Path, where: str
) -> None:
    server = Dripping(ANSWERS_TO_A_FILE[where])
    try:
        source = HuggingFaceSource(endpoint=f"http://127.0.0.1:{server.port}")
        fetching = asyncio.create_task(
            source.fetch(MODEL, tmp_path, token=None, progress=lambda _: None)
        )
        assert await asyncio.to_thread(server.was_asked.wait, 30)
        assert not fetching.done()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        assert await asyncio.to_thread(server.was_hung_up_on.wait, 30)
    finally:
        server.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", [*WHERE, "handshake"])
def test_the_same_holds_over_tls(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_server, of_client = tls
    monkeypatch.setattr(bounded_requests, "_trusted", lambda: of_client)
    server = Dripping(
        WHERE.get(where, b"\x16\x03\x03\x40\x00"), of_server if where in WHERE else None
    )
    try:
        for seconds in (LIMIT, 0):
            with pytest.raises(TooSlow, match="was not there"), bounded(seconds) as bound:
                bound.client.get(f"https://127.0.0.1:{server.port}/", timeout=30)
    finally:
        server.close()


class HandFired:
    """Timers that fire when they are told to."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self.seconds, self.fire = seconds, act
        self.daemon = self.is_started = self.is_cancelled = False

    def start(self) -> None:
        self.is_started = True

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[HandFired]:
    made: list[HandFired] = []

    def make(seconds: float, act: Callable[[], None]) -> HandFired:
        made.append(HandFired(seconds, act))
        return made[-1]

    monkeypatch.setattr(threading, "Timer", make)
    return made


def test_what_comes_at_the_least_rate_may_take_as_long_as_it_takes(timers: list[HandFired]) -> None:
    bound = Bound(30)
    bound.watch_rate(LEAST_BYTES_PER_SECOND)
    assert timers[0].is_cancelled
    for _ in range(1000):  # more than eight hours
        for num_bytes in (1, 30 * LEAST_BYTES_PER_SECOND - 1):
            bound.count(num_bytes)
        timers[-1].fire()
        assert not bound.is_over
    assert {each.seconds for each in timers if each.is_started} == {30}
    assert len(timers) == 1002
    bound.count(30 * LEAST_BYTES_PER_SECOND - 1)
    timers[-1].fire()
    assert bound.is_over
    bound.end()
    assert len(timers) == 1002


def test_a_rate_is_not_watched_after_the_end(timers: list[HandFired]) -> None:
    """As where the timer fires in the moment in which the file is complete."""
    bound = Bound(30)
    bound.watch_rate(1)
    bound.count(30)
    bound.end()
    timers[-1].fire()
    assert len(timers) == 2

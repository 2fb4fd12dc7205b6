"""Frames survive any cut of the byte stream, and values survive the way through a frame."""

from __future__ import annotations

import dataclasses
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import pytest
from exo_engine import frames
from exo_engine.config import EngineConfig
from exo_engine.core.request import EngineRequest, EngineStats, RequestOutput, TokenLogprobs
from exo_engine.frames import ConnectionEnded, FrameSocket, encode
from exo_engine.sampling_params import SamplingParams
from exo_engine.server.messages import (
    Refusal,
    pack,
    pack_config,
    pack_output,
    pack_request,
    unpack_config,
    unpack_output,
    unpack_request,
    unpack_stats,
)
from hypothesis import given, settings
from hypothesis import strategies as st


def through_a_frame(value: object) -> object:
    return msgpack.unpackb(msgpack.packb(value), strict_map_key=False)


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(0, 3000), max_size=5), cut=st.integers(1, 700))
def test_messages_arrive_whole_and_in_order(sizes: list[int], cut: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        receiver = FrameSocket(theirs)
        data = b"".join(encode("m", "x" * size) for size in sizes)
        received = []
        for begin in range(0, len(data), cut):
            ours.sendall(data[begin : begin + cut])
            received += receiver.receive(is_waiting=False)
        assert received == [("m", "x" * size) for size in sizes]
        assert receiver.receive(is_waiting=False) == []


def test_end_of_the_other_process_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        receiver = FrameSocket(theirs)
        ours.sendall(encode("m", 1)[:3])
        ours.close()
        with pytest.raises(ConnectionEnded):
            receiver.receive(is_waiting=True)
        with pytest.raises(ConnectionEnded):
            receiver.send("progress", "x")


def test_last_words_of_the_other_process_are_heard() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            FrameSocket(ours).send("failed", "no room")
        receiver = FrameSocket(theirs)
        assert receiver.receive(is_waiting=True) == [("failed", "no room")]
        with pytest.raises(ConnectionEnded):
            receiver.receive(is_waiting=True)


def test_last_words_are_heard_though_the_other_process_left_a_frame_unread() -> None:
    """Which resets the connection: a process that fails in a step seldom has read the next one."""
    ours, theirs = socket.socketpair()
    with theirs:
        receiver = FrameSocket(theirs)
        receiver.send("step", "x")
        with ours:
            FrameSocket(ours).send("failed", "no room")
        assert receiver.receive(is_waiting=True) == [("failed", "no room")]
        with pytest.raises(ConnectionEnded):
            receiver.receive(is_waiting=True)


class Polled(Exception):
    """Somebody looked at the socket, which may be to wait for it."""


def raise_polled() -> None:
    raise Polled


def test_message_taken_in_while_sending_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    large = bytes(2**22)  # more than a socket holds
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        sender, other = FrameSocket(ours), FrameSocket(theirs)
        other.send("prepared", "x")
        read = pool.submit(other.receive, is_waiting=True)
        sender.send("step", large, takes_in=True)
        assert read.result() == [("step", large)]
        with monkeypatch.context() as patch:
            patch.setattr(frames.select, "poll", raise_polled)
            sender.wait(3600)
            sender.wait_beside([])
        assert sender.receive(is_waiting=False) == [("prepared", "x")]
        monkeypatch.setattr(frames.select, "poll", raise_polled)
        with pytest.raises(Polled):
            sender.wait(3600)


@pytest.mark.parametrize("num_bytes", [3, 6])
def test_part_of_a_message_is_waited_for(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        receiver = FrameSocket(theirs)
        ours.sendall(encode("m", "x" * 10)[:num_bytes])
        assert receiver.receive(is_waiting=False) == []
        monkeypatch.setattr(frames.select, "poll", raise_polled)
        with pytest.raises(Polled):
            receiver.wait(3600)
        with pytest.raises(Polled):
            receiver.wait_beside([])


def test_request_survives() -> None:
    params = SamplingParams(
        temperature=0.5, top_k=3, seed=2**63 - 1, max_tokens=7, stop_token_ids=(4, 5),
        logprobs=2, prompt_logprobs=1, logit_bias={3: -1.5},
    )  # fmt: skip
    request = EngineRequest("r-0", (1, 2, 3), params, priority=-4)
    assert unpack_request(through_a_frame(pack_request(request))) == request  # type: ignore[arg-type]


def test_output_survives() -> None:
    entry = TokenLogprobs(7, -0.5, 1, ((7, -0.5), (8, -1.0)))
    output = RequestOutput(
        "r-0", (7, 8), (entry, entry), "stop", 16, stop_token_id=8, prompt_logprobs=(None, entry)
    )
    refusal = Refusal("too long", "context_length_exceeded", "prompt")
    back = unpack_output(through_a_frame(pack_output(output, refusal)))  # type: ignore[arg-type]
    assert (back.output, back.refusal) == (output, refusal)
    bare = RequestOutput("r-1", (1,))
    assert unpack_output(through_a_frame(pack_output(bare))).output == bare  # type: ignore[arg-type]


def test_stats_and_configuration_survive() -> None:
    numbers = [each.name for each in dataclasses.fields(EngineStats)]
    stats = EngineStats(**{name: index for index, name in enumerate(numbers)})
    assert unpack_stats(through_a_frame(pack(stats))) == stats  # type: ignore[arg-type]
    config = EngineConfig(model_dir=Path("/m"), max_model_len=9, seed=3)
    assert unpack_config(through_a_frame(pack_config(config))) == config  # type: ignore[arg-type]


def test_a_sibling_comes_without_the_prompt_that_it_shares() -> None:
    first = EngineRequest("r-0", (1, 2, 3), SamplingParams())
    second = EngineRequest("r-1", (1, 2, 3), SamplingParams(), sibling_of="r-0")
    packed = through_a_frame(pack_request(second))
    assert [1, 2, 3] not in packed  # type: ignore[operator]
    unpacked = unpack_request(packed, first.prompt_token_ids)  # type: ignore[arg-type]
    assert unpacked == second
    assert unpacked.prompt_token_ids is first.prompt_token_ids


def test_names_of_any_bytes_survive() -> None:
    """Of files, and of halves of characters that JSON may have."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for text in ("n\udcff", "x\ud800", "\U0001f600"):
            FrameSocket(ours).send("m", [text, {text: 1}])
            assert FrameSocket(theirs).receive(is_waiting=True) == [("m", [text, {text: 1}])]

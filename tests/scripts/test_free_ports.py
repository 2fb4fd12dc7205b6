"""Ports for servers that are started as processes."""

from __future__ import annotations

import socket

import pytest

from scripts import free_ports


def test_ports_are_different_and_nobody_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_ = few = free_ports.free_ports(3)
    assert len(set(few)) == 3
    monkeypatch.setattr(free_ports, "_BELOW_OUTGOING", few)
    with socket.create_server(("127.0.0.1", first)):
        assert sorted(free_ports.free_ports(2)) == sorted(few[1:])

"""Requests wait for a replica that is on its way, within bounds, and are told how long they did."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from aiohttp import web

from exo_inference.errors import ConfigurationError
from exo_inference.gateway.app import Gateway
from exo_inference.gateway.exchange import Exchange
from exo_inference.gateway.held_requests import Holding, HoldSettings, read_hold_settings
from exo_inference.gateway.table import Deployment


@pytest.fixture
async def empty(stack):
    """A stack whose only replica is being replaced."""
    stack.write_table([], coming=True, state="deploying")
    await stack.table_applied()
    return stack


async def held(stack, num: int) -> None:
    """Wait until so many requests are held."""
    async with asyncio.timeout(5):
        while stack.gateway._holding.num_held < num:
            await asyncio.sleep(0.01)


def ask(stack, path="/v1/chat/completions", **body):
    async def post():
        async with stack.client.post(stack.path(path), json=body) as answer:
            return answer.status, await answer.read(), answer.headers

    return asyncio.create_task(post())


def exchange(deployment_id):
    return Exchange("r", deployment_id=deployment_id)


def hold(holding, exchange, *, num_bytes=0):
    """Hold a request of a deployment whose only replica cannot be reached and is started again."""
    deployment = Deployment(exchange.deployment_id, "chat", "", "", (), (), 8, is_coming=True)
    now = asyncio.get_running_loop().time()
    return holding.until_reachable(exchange, deployment, since=now, num_bytes=num_bytes)


async def restarted(stack, **settings):
    await stack.gateway.stop(grace_seconds=0.1)
    stack.gateway = Gateway(stack.state, holding=HoldSettings(**settings))
    stack.url = f"http://127.0.0.1:{await stack.gateway.start('127.0.0.1', 0)}"


async def test_requests_wait_for_the_replacement_and_are_told(empty):
    requests = [ask(empty) for _ in range(20)]
    await held(empty, 20)
    assert "exo_gateway_held_requests 20.0" in await empty.admin("/metrics")
    empty.write_table(empty.engines[:1])
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*requests)
    assert {status for status, _, _ in answers} == {200}
    assert all(float(headers["X-Exo-Held-Seconds"]) >= 0 for _, _, headers in answers)
    status, _, headers = await ask(empty)
    assert (status, "X-Exo-Held-Seconds" in headers) == (200, False)


async def test_deployment_that_starts_for_the_first_time_answers_at_once(stack):
    stack.write_table([], state="deploying", **{"state-details": "loading weights 43 %"})
    await stack.table_applied()
    status, body, headers = await ask(stack)
    assert status == 503
    assert b"loading weights 43 %" in body
    assert "X-Exo-Held-Seconds" not in headers


async def test_request_is_held_no_longer_than_the_bound(empty):
    await restarted(empty, seconds=0.2)
    status, body, headers = await ask(empty)
    assert status == 503
    assert b"no_ready_replica" in body
    assert headers["Retry-After"]
    assert 0.2 <= float(headers["X-Exo-Held-Seconds"]) < 5


async def test_no_more_requests_are_held_than_the_bound(empty):
    await restarted(empty, max_requests=8)
    first = [ask(empty), ask(empty)]
    await held(empty, 2)
    status, _, headers = await ask(empty)
    assert (status, "X-Exo-Held-Seconds" in headers) == (503, False)
    empty.write_table(empty.engines)
    async with asyncio.timeout(5):
        assert {status for status, _, _ in await asyncio.gather(*first)} == {200}


async def test_a_deployment_that_does_not_come_back_leaves_room_for_others():
    holding = Holding(HoldSettings(max_requests=8))
    waiting = [asyncio.create_task(hold(holding, exchange("d-1"))) for _ in range(10)]
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [False] * 2 + [True] * 8
    others = [asyncio.create_task(hold(holding, exchange(name))) for name in ("d-2", "d-3")]
    await asyncio.sleep(0)
    assert [task.done() for task in others] == [False] * 2
    for task in (*waiting, *others):
        task.cancel()
    await asyncio.gather(*waiting, *others, return_exceptions=True)


async def test_bodies_of_held_requests_leave_room_for_those_of_other_deployments():
    holding = Holding(HoldSettings(deployment_bytes=100))
    first = asyncio.create_task(hold(holding, exchange("d-1"), num_bytes=60))
    await asyncio.sleep(0)
    assert not await hold(holding, exchange("d-1"), num_bytes=60)
    small = asyncio.create_task(hold(holding, exchange("d-1"), num_bytes=40))
    other = asyncio.create_task(hold(holding, exchange("d-2"), num_bytes=60))
    await asyncio.sleep(0)
    holding.follow()
    assert await asyncio.gather(first, small, other) == [True, True, True]


async def test_a_request_that_tries_again_keeps_its_place():
    holding = Holding(HoldSettings(max_requests=4))
    first, later = exchange("d-1"), exchange("d-1")
    waiting = asyncio.create_task(hold(holding, first))
    await asyncio.sleep(0)
    holding.follow()
    assert await waiting
    assert not await hold(holding, later)  # while the first one tries
    holding.release(first)
    waiting = asyncio.create_task(hold(holding, later))
    await asyncio.sleep(0)
    holding.follow()
    assert await waiting


async def test_no_place_is_kept_by_requests_that_have_ended(empty):
    requests = [ask(empty) for _ in range(3)]
    await held(empty, 3)
    requests.pop().cancel()
    empty.write_table(empty.engines[:1])
    async with asyncio.timeout(5):
        assert {status for status, _, _ in await asyncio.gather(*requests)} == {200}
        while empty.gateway._holding._places:
            await asyncio.sleep(0.01)


async def test_nothing_is_held_where_that_is_switched_off(empty):
    await restarted(empty, seconds=0)
    assert (await ask(empty))[0] == 503


async def test_request_is_refused_once_nothing_is_on_its_way_any_more(empty):
    request = ask(empty)
    await held(empty, 1)
    details = {"state-details": "replica a crashed 3 times"}
    empty.write_table([], state="error", **details)
    async with asyncio.timeout(5):
        status, body, _ = await request
    assert status == 503
    assert b"crashed 3 times" in body


async def test_request_of_a_deployment_that_was_deleted_meanwhile_is_404(empty):
    request = ask(empty)
    await held(empty, 1)
    empty.write_table([], **{"deployment-id": "d-9", "name": "new"})
    async with asyncio.timeout(5):
        assert (await request)[0] == 404


async def test_client_that_hangs_up_is_held_no_longer(empty):
    request = ask(empty)
    await held(empty, 1)
    request.cancel()
    async with asyncio.timeout(5):
        while empty.gateway._holding.num_held:
            await asyncio.sleep(0.01)


async def test_gateway_that_stops_holds_nothing_for_long(empty):
    await restarted(empty, stop_seconds=0.1)
    request = ask(empty)
    await held(empty, 1)
    async with asyncio.timeout(5):
        await empty.gateway.stop(grace_seconds=10)
    assert (await request)[0] == 503


async def test_request_on_a_replica_that_dies_is_sent_again_to_its_replacement(stack):
    """As when the only engine is killed: it hangs up, cannot be reached, leaves the table, is back."""
    (only,) = stack.engines[:1]
    stack.write_table([only])
    await stack.table_applied()
    await restarted(stack)
    only.breaks_off()
    died = only.handler

    async def die(request):
        await only.runner.sites.copy().pop().stop()
        return await died(request)

    only.handler = die
    request = ask(stack, stream=True)
    await held(stack, 1)
    stack.write_table([], coming=True, state="deploying")
    await stack.table_applied()
    only.streams(*stack.chunks, stack.done)
    await web.UnixSite(only.runner, str(only.socket)).start()
    assert not request.done()
    stack.write_table([only])
    async with asyncio.timeout(5):
        status, body, headers = await request
    assert (status, body) == (200, b"".join(stack.chunks) + stack.done)
    assert float(headers["X-Exo-Held-Seconds"]) >= 0
    assert len(only.bodies) == 2
    assert only.bodies[0] == only.bodies[1]


class ResettingSocket:
    """Listens, accepts nobody, and closes when somebody has connected; listens anew at once, or after `once` no more."""

    def __init__(self, path, *, once=False):
        self.path, self.once = path, once
        self.closed = asyncio.Event()
        self.listen()

    def listen(self):
        self.queue = socket.socket(socket.AF_UNIX)
        self.queue.bind(str(self.path))
        self.queue.listen()
        asyncio.get_running_loop().add_reader(self.queue, self.reset)

    def reset(self):
        self.close()
        if not self.once:
            self.listen()

    def close(self):
        asyncio.get_running_loop().remove_reader(self.queue)
        self.queue.close()
        self.path.unlink(missing_ok=True)
        self.closed.set()


async def stopped(engine):
    await engine.stop()
    engine.socket.unlink(missing_ok=True)


async def test_a_replica_that_goes_on_resetting_connections_is_given_up(stack):
    (only,) = stack.engines[:1]
    stack.write_table([only])
    await stack.table_applied()
    await restarted(stack)
    await stopped(only)
    resetting = ResettingSocket(only.socket)
    async with asyncio.timeout(10):
        status, body, _ = await ask(stack)
    resetting.close()
    assert status == 502
    assert b"3 replicas of deployment" in body


async def test_a_reset_by_another_replica_than_died_last_counts(stack):
    first, second = stack.engines[:2]
    stack.write_table([first, second])
    await stack.table_applied()
    first.breaks_off()
    await stopped(second)
    resetting = ResettingSocket(second.socket)
    async with asyncio.timeout(10):
        status, body, _ = await ask(stack)
    resetting.close()
    assert status == 502
    assert b"3 replicas of deployment" in body
    assert len(first.requests) <= 2


async def test_one_kill_counts_once_where_it_resets_a_new_connection(stack):
    """A process that dies closes what is connected, and then its socket with what waits there to be accepted."""
    (only,) = stack.engines[:1]
    stack.write_table([only])
    await stack.table_applied()
    await restarted(stack)
    dying = asyncio.Queue()

    async def die(request):
        await only.runner.sites.copy().pop().stop()
        only.socket.unlink(missing_ok=True)
        dying.put_nowait(ResettingSocket(only.socket, once=True))
        request.transport.abort()
        return web.Response()

    only.handler = die
    request = ask(stack)
    for _ in range(2):
        async with asyncio.timeout(5):
            await (await dying.get()).closed.wait()
        await web.UnixSite(only.runner, str(only.socket)).start()
        if len(only.requests) == 2:
            only.answers(200, {"engine": "again"})
    async with asyncio.timeout(5):
        status, body, _ = await request
    assert (status, json.loads(body)) == (200, {"engine": "again"})
    assert len(only.requests) == 3


async def test_wait_for_one_replacement_leaves_time_to_notice_the_next_end(stack, monkeypatch):
    """As when the only engine is killed, is back after half a minute, and is killed again at once."""
    (only,) = stack.engines[:1]
    stack.write_table([], coming=True, state="deploying")
    await stack.table_applied()
    await restarted(stack, seconds=600)
    holding = stack.gateway._holding
    until_ready = holding.until_ready

    async def wait_long(exchange, *args, **named):
        found = await until_ready(exchange, *args, **named)
        if 0 < exchange.held_seconds < 30:
            exchange.held_seconds += 30
        return found

    monkeypatch.setattr(holding, "until_ready", wait_long)

    async def die(request):
        await only.runner.sites.copy().pop().stop()
        request.transport.abort()
        return web.Response()

    only.handler = die
    request = ask(stack)
    await held(stack, 1)
    stack.write_table([only])
    async with asyncio.timeout(5):
        while not only.bodies:
            await asyncio.sleep(0.01)
        while only.runner.sites:
            await asyncio.sleep(0.01)
    await held(stack, 1)  # the table still calls it ready
    only.handler = None
    await web.UnixSite(only.runner, str(only.socket)).start()
    async with asyncio.timeout(5):
        assert (await request)[0] == 200
    assert len(only.bodies) == 2


async def test_request_that_may_have_had_an_effect_is_not_sent_again(stack):
    for engine in stack.engines:
        engine.breaks_off()
    status, body, _ = await ask(stack, "/v1/load_lora_adapter")
    assert status == 502
    assert b"may have had an effect" in body
    assert sum(len(engine.bodies) for engine in stack.engines) == 1


async def test_replica_that_only_loads_its_model_is_waited_for(stack):
    (only,) = stack.engines[:1]
    only.answers(503, {"error": {"message": "not loaded yet"}}, X_Exo_Starting="1")
    stack.write_table([only])
    await stack.table_applied()
    await restarted(stack)
    request = ask(stack)
    await held(stack, 1)
    only.handler = None
    async with asyncio.timeout(5):
        assert (await request)[0] == 200


def test_settings_come_from_the_environment():
    assert read_hold_settings({}) == HoldSettings()
    found = read_hold_settings({"EXO_HOLD_SECONDS": "5", "EXO_HOLD_REQUESTS": "7"})
    assert (found.seconds, found.max_requests) == (5, 7)


@pytest.mark.parametrize("wrong", ["-1", "ten", "3601", "9" * 5000, "١"])
def test_setting_that_makes_no_sense_is_refused_by_name(wrong):
    with pytest.raises(ConfigurationError, match="EXO_HOLD_SECONDS"):
        read_hold_settings({"EXO_HOLD_SECONDS": wrong})

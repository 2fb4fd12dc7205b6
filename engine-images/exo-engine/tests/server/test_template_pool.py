"""Templates run in processes of their own: what gets past the sandbox costs its own request alone."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from exo_engine.errors import ConfigurationError
from exo_engine.server.api_errors import from_engine
from exo_engine.server.pools import template_pool
from exo_engine.server.pools.process_pool import NoProcess
from exo_engine.server.pools.template_pool import TemplatePool
from exo_engine.tokenizer.chat_template import ChatTemplate
from exo_engine.tokenizer.template_sources import TemplateRefused

USER = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'slow' %}{{ ('a' * 15000000) | wordwrap(1) }}"
    "{% elif m.content == 'refuse' %}{{ raise_exception('\x1b[2Jno') }}"
    "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}{{ x }}{{ bos_token }}"
)
"""`wordwrap` of one long word takes Jinja minutes, and nothing inside the process can stop it."""

Open = Callable[..., Any]


@pytest.fixture
async def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TemplatePool]:
    """A pool whose processes have one or two seconds instead of five or six; the rest of them is the real one."""
    (tmp_path / "hurried.py").write_text(
        "import sys\n"
        "from exo_engine.tokenizer import template_process\n"
        "template_process.MAX_PROCESSOR_SECONDS = 1\n"
        "sys.exit(template_process.main())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(template_pool, "_MODULE", "hurried")
    made = TemplatePool(
        {"default": TEMPLATE}, special_tokens={"bos_token": "<s>"}, variables={"x": "X"}
    )
    await made.open()
    yield made
    await made.close()
    assert made.pool.num_processes == 0 or not made.pool.processes


async def test_text_is_that_of_the_template_itself(pool: TemplatePool) -> None:
    here = ChatTemplate(
        {"default": TEMPLATE}, special_tokens={"bos_token": "<s>"}, variables={"x": "X"}
    )
    for content in ("hi", "größe 🙂", "\ud83d", "\x00", "a" * 300_000):
        messages = [{"role": "user", "content": content}]
        for variables in ({}, {"x": [1, {"a": None}]}):
            found = await pool.render(messages, variables=variables)
            assert found == here.render(messages, variables=variables)
    assert pool.pool.num_processes == 1


async def test_slow_template_is_ended_and_others_are_answered_meanwhile(
    pool: TemplatePool,
) -> None:
    slow = asyncio.create_task(pool.render([{"role": "user", "content": "slow"}]))
    await asyncio.sleep(0)
    num_answered, longest = 0, 0.0
    while not slow.done():
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - before)
        assert await pool.render(USER) == "<user>hiX<s>"
        num_answered += 1
    with pytest.raises(TemplateRefused, match="seconds of processor time"):
        slow.result()
    assert num_answered >= 1
    assert await pool.render(USER) == "<user>hiX<s>"


@pytest.mark.slow
async def test_many_slow_ones_start_four_processes_at_most(pool: TemplatePool) -> None:
    slow = [pool.render([{"role": "user", "content": "slow"}]) for _ in range(6)]
    most = 0
    waiting = asyncio.gather(*slow, return_exceptions=True)
    while not waiting.done():
        most = max(most, pool.pool.num_processes)
        await asyncio.sleep(0.02)
    assert all(isinstance(each, TemplateRefused) for each in waiting.result())
    assert 1 < most <= 4
    assert await pool.render(USER) == "<user>hiX<s>"


async def test_a_burst_of_quick_ones_needs_one_process(pool: TemplatePool) -> None:
    texts = await asyncio.gather(*(pool.render(USER) for _ in range(200)))
    assert set(texts) == {"<user>hiX<s>"}
    assert pool.pool.num_processes <= 2


async def test_a_client_that_hangs_up_leaves_its_answer_to_nobody(pool: TemplatePool) -> None:
    for number in range(20):
        task = asyncio.create_task(pool.render([{"role": "user", "content": f"gone {number}"}]))
        await asyncio.sleep(0.0005)
        task.cancel()
        assert await pool.render(USER) == "<user>hiX<s>"


async def test_a_process_that_is_killed_costs_no_request(pool: TemplatePool) -> None:
    for is_noticed in (False, True):
        (process,) = pool.pool.processes
        os.kill(process.pid, signal.SIGKILL)
        if is_noticed:
            await process.wait()
        assert await pool.render(USER) == "<user>hiX<s>"
        assert pool.pool.num_processes == 1


async def test_without_descriptors_what_runs_answers_all(
    pool: TemplatePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A further process is a help in need, and none of it no reason to refuse a request."""
    (process,) = pool.pool.processes

    async def start(*_: object, **__: object) -> None:
        os.kill(process.pid, signal.SIGCONT)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    os.kill(process.pid, signal.SIGSTOP)
    assert await asyncio.gather(*(pool.render(USER) for _ in range(3))) == ["<user>hiX<s>"] * 3


async def test_a_request_without_a_process_is_told_to_come_again(
    pool: TemplatePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    (process,) = pool.pool.processes
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(NoProcess, match="Too many open files") as caught:
        await pool.render(USER)
    refused = from_engine(caught.value)
    assert (refused.status, refused.headers) == (503, {"Retry-After": "1"})


async def test_a_conversation_that_ends_its_process_is_tried_twice_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    (tmp_path / "dying.py").write_text(
        "import os, sys\n"
        "from exo_engine.tokenizer import template_process\n"
        f"open({str(starts)!r}, 'a').write('x')\n"
        "read, seen = template_process._read, []\n"
        "def die(stream):\n"
        "    seen.append(read(stream))\n"
        "    if len(seen) > 1:\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return seen[-1]\n"
        "template_process._read = die\n"
        "sys.exit(template_process.main())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(template_pool, "_MODULE", "dying")
    dying = TemplatePool({"default": TEMPLATE}, special_tokens={"bos_token": "<s>"})
    await dying.open()
    with pytest.raises(TemplateRefused, match="the process that renders it ended"):
        await dying.render(USER)
    assert starts.read_text() == "xx"
    assert dying.pool.num_processes == 0


async def test_signals_for_the_server_do_not_end_the_process(pool: TemplatePool) -> None:
    (process,) = pool.pool.processes
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(process.pid, number)
    assert await pool.render(USER) == "<user>hiX<s>"


async def test_refusals_have_their_words_without_escapes(pool: TemplatePool) -> None:
    with pytest.raises(TemplateRefused, match="refuses this conversation") as caught:
        await pool.render([{"role": "user", "content": "refuse"}])
    assert caught.value.message.isprintable()


async def test_a_conversation_nested_too_deeply_is_refused(pool: TemplatePool) -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(TemplateRefused, match="nested too deeply"):
        await pool.render(USER, variables={"x": deep})


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("{% if %}", id="syntax"),
        pytest.param("{{ 'a' * 10**10 }}", id="size"),
        pytest.param("{{ ('a' * 15000000) | wordwrap(1) }}", id="time", marks=pytest.mark.slow),
    ],
)
async def test_a_template_that_no_conversation_passes_does_not_load(
    pool: TemplatePool, source: str
) -> None:
    bad = TemplatePool({"default": source}, special_tokens={})
    with pytest.raises(ConfigurationError, match=r"cannot (compile|use) the chat template"):
        await bad.open()
    assert bad.pool.num_processes == 0


async def test_limits_are_those_of_the_process(pool: TemplatePool) -> None:
    (process,) = pool.pool.processes
    about = Path(f"/proc/{process.pid}")
    limits = await asyncio.to_thread((about / "limits").read_text)
    found = {line[:26].strip(): line[26:].split()[:2] for line in limits.splitlines()}
    assert found["Max address space"] == [str(2**30), str(2**30)]
    assert found["Max file size"] == ["0", "0"]
    assert (await asyncio.to_thread((about / "oom_score_adj").read_text)).strip() == "1000"


_NEST = "{%% set %(n)s = namespace(l=[1]) %%}{%% for i in range(40) %%}{%% set %(n)s.l = [%(n)s.l, %(n)s.l] %%}{%% endfor %%}"
NESTED = _NEST % {"n": "a"} + _NEST % {"n": "b"}
"""Two lists of 2^40 elements, made of 40 each; only comparing them takes for ever."""
PAST_THE_SANDBOX = {
    "wordwrap": "{{ ('a ' * 7000000) | wordwrap(1) }}",
    "compare": NESTED + "{{ a.l == b.l }}",
    "order": NESTED + "{{ a.l < b.l }}",
    "in": NESTED + "{{ a.l in [b.l] }}",
    "max": NESTED + "{{ [a.l, b.l] | max | length }}",
    "hash": "{% set a = namespace(l=(1,)) %}{% for i in range(40) %}{% set a.l = (a.l, a.l) %}"
    "{% endfor %}{{ {a.l: 1} is mapping }}",
    "select": "{{ range(99999) | select('in', range(99999) | list) | list | length }}",
    "division": "{% set a = ('f' * 8000000) | int(base=16) %}{% set b = ('f' * 4000000) | int(base=16) %}"
    "{{ a // b }}",
}


@pytest.mark.slow
@pytest.mark.parametrize("source", PAST_THE_SANDBOX.values(), ids=PAST_THE_SANDBOX.keys())
async def test_what_gets_past_the_sandbox_is_ended_and_holds_up_nobody(
    pool: TemplatePool, source: str
) -> None:
    attacked = TemplatePool({"default": source}, special_tokens={}, content_format="string")
    await attacked.open()
    attack = asyncio.create_task(attacked.render(USER))
    num_answered = 0
    while not attack.done():
        assert await pool.render(USER) == "<user>hiX<s>"
        num_answered += 1
    with pytest.raises(TemplateRefused, match=r"seconds|memory"):
        attack.result()
    assert num_answered > 0
    await attacked.close()

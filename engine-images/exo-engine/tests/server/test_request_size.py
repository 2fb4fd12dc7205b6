"""What one request may ask for at once: sequences, and tokens of all of them together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from exo_engine.core.request import EngineRequest
from exo_engine.sampling_params import SamplingParams
from exo_engine.server import request_size
from exo_engine.server.api_errors import ApiError
from exo_engine.server.core_link import CoreLink, Held, RequestStream
from exo_engine.server.sampling import Sampling
from exo_engine.structured_output.vocabulary import Vocabulary

from . import scripted_core
from .scripted_core import FakeCore, linked, serving

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
REFUSED = {
    "ids": ("/v1/completions", {"prompt": [[5] * 6] * 2, "n": 4}, "prompt", 48),
    "a text": ("/v1/completions", {"prompt": "a b c d e f g h", "n": 50}, "prompt", 0),
    "a conversation": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a b c d"}], "n": 50},
        "messages",
        0,
    ),
}


async def post(model_dir: Path, core: FakeCore, path: str, body: Any) -> tuple[int, Any]:
    [answer] = await post_all(model_dir, core, path, [body])
    return answer


async def post_all(
    model_dir: Path, core: FakeCore, path: str, bodies: Iterable[Any]
) -> list[tuple[int, Any]]:
    """Send bodies to one server, one after the other: it starts processes of its own."""
    found = []
    async with (
        serving(core, model_dir) as server,
        aiohttp.ClientSession(server.make_url("/")) as client,
    ):
        for body in bodies:
            async with client.post(path, json={"max_tokens": 1, **body}) as answer:
                found.append((answer.status, await answer.json()))
    return found


@pytest.mark.parametrize(("path", "body", "param", "number"), REFUSED.values(), ids=REFUSED)
async def test_prompts_count_once_for_each_answer(
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: Any,
    param: str,
    number: int,
) -> None:
    """A body of 3 MB made the API pack 120 million tokens, and answer nobody for a minute."""
    monkeypatch.setattr(request_size, "MAX_TOKENS", 47)
    core = FakeCore([5], most_prompt_tokens=99)
    status, answer = await post(model_dir, core, path, body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert "at most 47 tokens together, got " + (str(number) if number else "") in str(answer)
    assert core.requests == []


async def test_one_prompt_for_one_answer_is_bounded_by_the_model_alone(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_size, "MAX_TOKENS", 47)
    core = FakeCore([5], most_prompt_tokens=99)
    status, _ = await post(model_dir, core, "/v1/completions", {"prompt": [5] * 48})
    assert (status, len(core.requests)) == (200, 1)


async def test_sequences_of_a_request_are_bounded(model_dir: Path) -> None:
    core = FakeCore([5])
    body = {"prompt": [[5]] * 41, "n": 100}
    status, answer = await post(model_dir, core, "/v1/completions", body)
    assert (status, answer["error"]["param"]) == (400, "n")
    assert "at most 4096, got 4100" in answer["error"]["message"]


PARAMETERS = {
    "bad words": ("bad_words", {"bad_words": [f"no{each} such" for each in range(12)]}),
    "allowed": ("allowed_token_ids", {"allowed_token_ids": [5] * 60}),
    "bias": ("logit_bias", {"logit_bias": {str(each): 1 for each in range(30)}}),
    "stop": ("stop", {"stop": ["x" * 60, "y"]}),
    "stop tokens": ("stop_token_ids", {"stop_token_ids": [5] * 60}),
    "schema": ("guided_json", {"guided_json": {"type": "object", "description": "x" * 600}}),
    "form": (
        "response_format",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"enum": ["x" * 600]}},
            }
        },
    ),
}


class Told(FakeCore):
    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Take it; the fake follows no grammar."""


@pytest.mark.parametrize(("param", "body"), PARAMETERS.values(), ids=PARAMETERS)
async def test_parameters_count_once_for_each_sequence(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, param: str, body: Any
) -> None:
    """A body of 270 kB became gigabytes on the way to the core, and nobody else was answered."""
    monkeypatch.setattr(request_size, "MAX_REPEATED", 600)
    core = Told([5])
    bodies = [{"prompt": "a", "n": num_choices, **body} for num_choices in (1, 16)]
    (taken, _), (refused, answer) = await post_all(model_dir, core, "/v1/completions", bodies)
    assert (taken, refused) == (200, 400), answer
    assert answer["error"]["param"].startswith(param)
    assert answer["error"]["message"].startswith(
        f"{answer['error']['param']} is too much for 16 answers"
    )
    assert "at most 600 token ids, counted for each answer, got " in answer["error"]["message"]
    assert len(core.requests) == 1


async def test_another_route_calls_the_field_by_its_own_name(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_size, "MAX_REPEATED", 50)
    body = {"messages": [{"role": "user", "content": "a"}], "stop_sequences": ["x" * 60]}
    status, answer = await post(model_dir, FakeCore([5]), "/v1/messages", body)
    assert status == 400
    assert answer["error"]["message"].startswith("stop_sequences is too much for 1 answers")


def sampling(number: int) -> Sampling:
    params = SamplingParams(allowed_token_ids=(5,) * number)
    return Sampling(params, 4, (), False, True, 0, None)


async def test_parameters_of_unfinished_requests_are_bounded_together() -> None:
    async with linked(FakeCore([5])) as link:
        full = request_size.MAX_REPEATED
        requests = [EngineRequest(f"r-{index}", (5,), SamplingParams()) for index in range(4)]
        streams = [link.submit([each], held=Held(full)) for each in requests[:3]]
        assert link.held == Held(3 * full)
        assert request_size.check_repeated(sampling(full // 4), 4, link) == full // 4
        streams.append(link.submit(requests[3:], held=Held(full)))
        with pytest.raises(ApiError, match=f"{4 * full} token ids are held") as refused:
            request_size.check_repeated(sampling(full // 4), 4, link)
        assert (refused.value.status, refused.value.code) == (429, "queue_full")
        small = 1024
        assert request_size.check_repeated(sampling(small), 4, link) == small
        streams[0].abort()
        for each in streams[1:]:
            await each.next_outputs()
        assert link.held == Held()


async def test_a_request_is_counted_until_it_has_ended(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Held] = []

    class Watched(CoreLink):
        def submit(self, requests: Any, **others: Any) -> RequestStream:
            stream = super().submit(requests, **others)
            held.append(self.held)
            return stream

    monkeypatch.setattr(scripted_core, "CoreLink", Watched)
    body = {
        "prompt": "a",
        "n": 3,
        "allowed_token_ids": [5] * 60,
        "stop": ["ab"],
        "ignore_eos": True,
    }
    status, _ = await post(model_dir, FakeCore([5]), "/v1/completions", body)
    assert (status, held) == (200, [Held(3 * (60 + 2 + 8), 3 * 2)])


def several(num_choices: int, prompt_logprobs: int | None = None) -> Sampling:
    params = SamplingParams(prompt_logprobs=prompt_logprobs)
    return Sampling(params, num_choices, (), False, True, 0, None)


async def test_prompts_of_several_choices_are_bounded_together() -> None:
    async with linked(FakeCore([5])) as link:
        limit = request_size.MAX_COPIED
        requests = [EngineRequest(f"r-{index}", (5,), SamplingParams()) for index in range(2)]
        stream = link.submit(requests, held=Held(0, limit // 2))
        check = request_size.check_copied
        assert check([range(limit)], several(1), link) == 0, "one answer needs no copy"
        assert check([range(500), range(700)], several(3), link) == 600, "a small one"
        for prompts, sampling in (([range(5000)], several(2)), ([range(5000)], several(1, 20))):
            with pytest.raises(ApiError, match=f"{limit} tokens are held") as refused:
                check(prompts, sampling, link)
            assert (refused.value.status, refused.value.code) == (429, "queue_full")
        stream.abort([requests[0].request_id])
        assert link.held == Held(0, limit // 2)
        assert check([range(5000)], several(2), link) == 5000
        assert check([range(1000)], several(1, 0), link) == 16_000
        stream.abort()
        assert check([range(limit)], several(1, 20), link) == limit * 16 * 21, "one alone"
        assert check([range(1000)], several(2, 10**9), link) == 1000 * 16 * 21, (
            "the core refuses it"
        )
        with pytest.raises(
            ApiError, match=f"at most {limit // 32} with it, got {limit // 32 + 1}"
        ) as refused:
            check([range(limit // 32), range(1)], several(1, 1), link)
        assert (refused.value.status, refused.value.param) == (400, "prompt_logprobs")


async def test_a_sibling_has_the_prompt_of_the_first_one() -> None:
    core = FakeCore([5])
    async with linked(core) as link:
        first = EngineRequest("r-0", (5, 6, 7), SamplingParams())
        others = [replace(first, request_id=f"r-{index}", sibling_of="r-0") for index in (1, 2)]
        second = EngineRequest("s-0", (8, 9), SamplingParams())
        stream = link.submit(
            [first, *others, second, replace(second, request_id="s-1", sibling_of="s-0")]
        )
        while not stream.is_finished:
            await stream.next_outputs()
    assert [each.prompt_token_ids for each in core.requests] == [(5, 6, 7)] * 3 + [(8, 9)] * 2
    assert core.requests[2].prompt_token_ids is core.requests[0].prompt_token_ids, (
        "no copy of its own"
    )

"""`/ai/usage` and `/ai/metrics`: what other processes answer, whatever that is, becomes one page."""

from __future__ import annotations

import asyncio
import json

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from exo_inference.cli.metrics import samples
from exo_inference.controller import context
from exo_inference.controller.context import SharedPage
from exo_inference.controller.http import local_metrics
from exo_inference.controller.http.local_metrics import MetricsPage, merge_metrics, read_usage
from exo_inference.controller.http.routes import metrics as routes
from exo_inference.resources import DeploymentSpec, InferenceDeployment, ObjectMeta
from tests.controller.conftest import Controller, DistinctAuth

ENGINE = b"""\
# HELP vllm:num_requests_running Requests that run.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model="m"} 2.0
# HELP exo_tokens_total Tokens.
# TYPE exo_tokens_total counter
exo_tokens_total 7.0
"""
DEPLOYMENT = InferenceDeployment(
    metadata=ObjectMeta(name="chat", uid="u-1"), spec=DeploymentSpec(model="m", gpu_type="cpu")
)


def engine(name: str, text: bytes | None = ENGINE) -> MetricsPage:
    return MetricsPage(text, {"deployment_id": "u-1", "replica": name})


def test_pages_of_several_replicas_become_one_that_prometheus_reads() -> None:
    text = merge_metrics([DEPLOYMENT], [MetricsPage(None, {}), engine("r1"), engine("r2")]).decode()
    assert text.count("# TYPE vllm:num_requests_running gauge") == 1
    families = {family.name: family for family in text_string_to_metric_families(text)}
    running = families["vllm:num_requests_running"].samples
    assert [(s.labels["replica"], s.labels["model"], s.value) for s in running] == [
        ("r1", "m", 2.0),
        ("r2", "m", 2.0),
    ]
    assert [s.name for s in families["exo_tokens"].samples] == ["exo_tokens_total"] * 2
    up = {s.labels["replica"]: s.value for s in families["exo_scrape_up"].samples}
    assert up == {"gateway": 0.0, "r1": 1.0, "r2": 1.0}
    assert {"exo_deployment_state", "exo_deployment_ready_replicas"} <= families.keys()


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe", b"x{a=", b'x{a="b"} y z', b"# TYPE x nonsense\nx 1", b"{" * 9999, b"", None,
        b"x " + b"9" * 400, b"x 1 " + b"9" * 400,
    ],
    ids=range(9),
)  # fmt: skip
def test_a_page_that_cannot_be_read_costs_no_other(text: bytes | None) -> None:
    page = merge_metrics([DEPLOYMENT], [engine("bad", text), engine("good")]).decode()
    assert 'vllm:num_requests_running{deployment_id="u-1",model="m",replica="good"} 2.0' in page
    assert list(text_string_to_metric_families(page))


@pytest.mark.parametrize("time", ["Inf", "NaN", "1e400", "1700000000000"])
def test_the_time_that_an_engine_gives_a_sample_is_left_out(time: str) -> None:
    """Of infinity the page could not be written, and the textfile collector of Prometheus refuses any."""
    pages = [engine("bad", f"x 1 {time}\n".encode()), engine("good")]
    page = merge_metrics([DEPLOYMENT], pages).decode()
    assert 'x{deployment_id="u-1",replica="bad"} 1.0\n' in page
    assert 'vllm:num_requests_running{deployment_id="u-1",model="m",replica="good"} 2.0\n' in page


def test_a_series_that_an_engine_has_twice_is_there_once() -> None:
    text = b'x{a="b"} 1\nx{a="b"} 2\nx{a="c"} 3\ny 4\nx{a="b"} 5\ny 6\n'
    page = merge_metrics([DEPLOYMENT], [engine("r1", text), engine("r2", text)]).decode()
    families = text_string_to_metric_families(page)
    found = [(s.name, *sorted(s.labels.items())) for family in families for s in family.samples]
    assert len(found) == len(set(found))
    assert sum(name in "xy" for name, *_ in found) == 2 * 3


def test_no_engine_hides_what_another_says_or_speaks_for_the_gateway() -> None:
    forged = b"# TYPE vllm:num_requests_running summary\nvllm:num_requests_running 9\n"
    forged += b"# TYPE exo_gateway_tokens counter\nexo_gateway_tokens_total 1e99\n"
    forged += (
        b'# TYPE exo_scrape_up gauge\nexo_scrape_up 0\nexo_deployment_state{state="error"} 1\n'
    )
    ours = b"# TYPE exo_gateway_tokens counter\nexo_gateway_tokens_total 7.0\n"
    pages = [MetricsPage(ours, {}), engine("bad", forged), engine("good")]
    page = merge_metrics([DEPLOYMENT], pages).decode()
    assert 'vllm:num_requests_running{deployment_id="u-1",model="m",replica="good"} 2.0\n' in page
    assert [line for line in page.splitlines() if line.startswith("exo_gateway")] == [
        "exo_gateway_tokens_total 7.0"
    ]
    assert 'exo_scrape_up{deployment_id="u-1",replica="bad"} 1.0' in page
    assert 'state="error"' not in page


@pytest.mark.parametrize(
    "line",
    [
        '{"exo.gateway_tokens_total"} 1e99',
        '# TYPE "exo.gateway_tokens" counter\n{"exo.gateway_tokens"} 1e99',
        "# TYPE exo_gateway_total counter\nexo_gateway_total 1e99",
        "# TYPE exo_gateway summary\nexo_gateway_sum 1e99",
        'x{"deployment.id"="1e99"} 1',
        'x{"a.b"="1e99",a_b="2"} 1',
    ],
)
def test_no_name_of_an_engine_becomes_another_when_it_is_written(line: str) -> None:
    """What the format cannot write, prometheus_client writes with `_`."""
    page = merge_metrics([DEPLOYMENT], [engine("bad", f"{line}\ny 4\n".encode())]).decode()
    assert "1e+99" not in page
    assert "1e99" not in page
    assert 'y{deployment_id="u-1",replica="bad"} 4.0\n' in page


@pytest.mark.parametrize("kinds", [("counter", "gauge"), ("gauge", "counter"), ("info", "gauge")])
def test_a_name_has_one_type_whatever_engines_say(kinds: tuple[str, str]) -> None:
    names = ["x_info"] if "info" in kinds else ["x_total", "x_total"]
    names = ["x", *names] if "info" in kinds else names
    pages = [
        engine(f"r{i}", f"# TYPE {name} {kind}\n{name} {i}\n".encode())
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    page = merge_metrics([DEPLOYMENT], pages).decode()
    told = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(told) == len(set(told))
    found = [s for family in text_string_to_metric_families(page) for s in family.samples]
    values = {(s.name, s.labels["replica"]): s.value for s in found if s.name in names}
    assert values == {(name, f"r{i}"): float(i) for i, name in enumerate(names)}


def test_a_page_has_a_bound_that_says_whom_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_metrics, "MAX_PAGE_BYTES", 2 * len(ENGINE))
    pages = [engine("r1"), engine("long", ENGINE * 5), engine("r2"), engine("r3")]
    page = merge_metrics([DEPLOYMENT], pages).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    up = {s.labels["replica"]: s.value for s in families["exo_scrape_up"].samples}
    assert up == {"r1": 1.0, "long": 0.0, "r2": 1.0, "r3": 0.0}
    running = families["vllm:num_requests_running"].samples
    assert [s.labels["replica"] for s in running] == ["r1", "r2"]


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\x0b", "\x1c", "\r"])
def test_no_label_of_an_engine_becomes_a_sample(end: str) -> None:
    """Python ends lines where the format does not."""
    forged = f'x{{a="b{end}exo_gateway_tokens_total 1{end}"}} 1\n'
    assert [each["name"] for each in samples(forged)] == ["x"]


def test_samples_as_data() -> None:
    text = '# HELP x y\nx{a="b\\"c",d="e\\nf"} 1.5\ny NaN\nz_bucket{le="+Inf"} 3 1700000000\nbad line here\n'
    assert list(samples(text)) == [
        {"name": "x", "labels": {"a": 'b"c', "d": "e\nf"}, "value": 1.5},
        {"name": "y", "labels": {}, "value": "NaN"},
        {"name": "z_bucket", "labels": {"le": "+Inf"}, "value": 3.0},
    ]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"rows": [{}]}', b'{"rows": 3}', b"[" * 99999])
def test_a_damaged_ledger_is_no_usage(body: bytes) -> None:
    assert read_usage(body) is None


ROW = {"key_id": "k", "requests": {"200": 3, "499": 1}, "prompt_tokens": 9, "completion_tokens": 5}


def test_usage_is_what_the_gateway_wrote_last_where_it_does_not_answer(
    controller: Controller,
) -> None:
    assert controller.call("GET", "/v2/ai/usage").json() == {"usage": []}
    controller.create_model()
    uid = controller.create_deployment()
    rows = [{**ROW, "deployment_id": uid, "key_id": uid}, {**ROW, "deployment_id": "gone"}]
    controller.state.usage_file.write_text(json.dumps({"format": 1, "rows": rows}))
    own, gone = controller.call("GET", "/v2/ai/usage").json()["usage"]
    assert (own["deployment"], own["key"], own["requests"]) == ("chat", "chat", ROW["requests"])
    assert (gone["deployment"], gone["key"], gone["key-id"]) == ("", "", "k")
    controller.state.usage_file.write_text("damaged")
    damaged = controller.call("GET", "/v2/ai/usage")
    assert (damaged.status_code, damaged.json()["title"]) == (503, "Usage not readable")


def test_metrics_of_a_controller_whose_gateway_is_away(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    url = f"http://127.0.0.1:{controller.port}/v2/ai/metrics"
    answer = requests.get(url, auth=DistinctAuth(controller.key, controller.secret), timeout=20)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert f'exo_deployment_state{{deployment="chat",deployment_id="{uid}",state="ready"}} 1.0' in (
        answer.text
    )
    assert 'exo_scrape_up{deployment_id="",replica="gateway"} 0.0' in answer.text


async def test_a_page_is_made_once_for_all_who_ask_within_a_second() -> None:
    now, made = [0.0], []

    async def make() -> bytes:
        made.append(now[0])
        await asyncio.sleep(0)
        return b"%d" % len(made)

    page = SharedPage(clock=lambda: now[0])
    assert await asyncio.gather(*(page.get(make) for _ in range(50))) == [b"1"] * 50
    now[0] = 0.9
    assert await page.get(make) == b"1"
    now[0] = 1.0
    assert await page.get(make) == b"2"


async def test_a_page_that_could_not_be_made_is_made_for_the_next() -> None:
    async def fail() -> bytes:
        raise OSError("away")

    async def make() -> bytes:
        return b"page"

    page = SharedPage()
    with pytest.raises(OSError, match="away"):
        await page.get(fail)
    assert await page.get(make) == b"page"


def test_metrics_are_merged_once_for_requests_that_come_together(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "PAGE_SECONDS", 600.0)
    merged = []

    def count(*arguments: object) -> bytes:
        merged.append(arguments)
        return b"up 1\n"

    monkeypatch.setattr(routes, "merge_metrics", count)
    auth = DistinctAuth(controller.key, controller.secret)
    for _ in range(3):
        answer = requests.get(
            f"http://127.0.0.1:{controller.port}/v2/ai/metrics", auth=auth, timeout=20
        )
        assert answer.text == "up 1\n"
    assert len(merged) == 1

from __future__ import annotations

import pytest

from exo_inference import errors
from exo_inference.sdk import AsyncClient, Client

from .fake_api import FakeApi


def zones(api: FakeApi, *names: str) -> None:
    entries = [{"name": name, "api-endpoint": f"{api.endpoint}/z/{name}"} for name in names]
    api.on("GET", "/zone", {"zones": entries})
    for name in names:
        api.on("GET", f"/z/{name}/ai/model", {"models": []})


def make(api: FakeApi, zone: str | None) -> Client:
    return Client("EXOk", "s", endpoint=api.endpoint, zone=zone)


def test_zone_is_looked_up_unsigned_once_and_then_used(api: FakeApi):
    zones(api, "ch-dk-2", "at-vie-2")
    with make(api, "at-vie-2") as client:
        client.models.list()
        client.models.list()
    lookup, first, second = api.seen
    assert lookup.path == "/zone"
    assert "authorization" not in lookup.headers
    assert first.path == second.path == "/z/at-vie-2/ai/model"
    assert "authorization" in first.headers


def test_endpoint_without_a_zone_is_used_as_it_is(api: FakeApi):
    api.on("GET", "/ai/model", {"models": []})
    with make(api, None) as client:
        client.models.list()
    assert [seen.path for seen in api.seen] == ["/ai/model"]


def test_unknown_zone_lists_the_known_ones(api: FakeApi):
    zones(api, "ch-dk-2", "at-vie-2")
    with make(api, "mars-1") as client, pytest.raises(errors.UsageError) as caught:
        client.models.list()
    assert "no zone 'mars-1'" in caught.value.message
    assert "at-vie-2, ch-dk-2" in caught.value.message


def test_other_zones_share_the_connection(api: FakeApi):
    zones(api, "ch-dk-2", "at-vie-2")
    with make(api, "ch-dk-2") as client:
        for zone in client.zones.list():
            client.for_zone(zone).models.list()
        client.for_zone("at-vie-2").models.list()
    paths = [seen.path for seen in api.seen]
    assert paths == [
        "/zone",
        "/z/ch-dk-2/ai/model",
        "/z/at-vie-2/ai/model",
        "/zone",
        "/z/at-vie-2/ai/model",
    ]


def test_closing_a_client_of_another_zone_leaves_the_first_open(api: FakeApi):
    zones(api, "ch-dk-2", "at-vie-2")
    with make(api, "ch-dk-2") as client:
        with client.for_zone("at-vie-2") as other:
            other.models.list()
        assert client.models.list() == []


def test_only_zone_is_taken_when_nobody_chose_one(api: FakeApi, monkeypatch, tmp_path):
    zones(api, "de-fra-1")
    file = tmp_path / "exoscale.toml"
    file.write_text(f'[[accounts]]\nname="a"\nkey="EXOk"\nsecret="s"\nendpoint="{api.endpoint}"\n')
    monkeypatch.delenv("EXOSCALE_ZONE", raising=False)
    with Client(config_file=file) as client:
        client.models.list()
    assert api.seen[-1].path == "/z/de-fra-1/ai/model"


@pytest.mark.parametrize("address", ["", "h/v2", "ftp://h/v2"])
def test_zone_without_a_usable_endpoint_is_an_error(api: FakeApi, address: str):
    api.on("GET", "/zone", {"zones": [{"name": "ch-dk-2", "api-endpoint": address}]})
    with make(api, "ch-dk-2") as client, pytest.raises(errors.InvalidAnswer, match="ch-dk-2"):
        client.models.list()


async def test_asynchronous_client_looks_zones_up_likewise(api: FakeApi):
    zones(api, "ch-dk-2", "at-vie-2")
    async with AsyncClient("EXOk", "s", endpoint=api.endpoint, zone="at-vie-2") as client:
        assert await client.models.list() == []
        assert await client.for_zone("ch-dk-2").models.list() == []

"""`model …`: requests, output and prompts as the `exo` CLI has them."""

from __future__ import annotations

import json

import pytest

from .conftest import Exo
from .fake_api import TIME, FakeApi


def test_create_sends_the_name_and_says_created(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "model", "create", "swiss-ai/Apertus-8B-Instruct-2509")
    assert (result.code, result.out) == (0, "Model created.\n")
    assert result.err == 'Creating model "swiss-ai/Apertus-8B-Instruct-2509"...\n'
    assert api.lines == ["GET /v2/zone", "POST /v2/ai/model"]
    assert api.requests[1].body == {"name": "swiss-ai/Apertus-8B-Instruct-2509"}


def test_the_zone_list_is_asked_unsigned_and_all_else_signed(exo: Exo, api: FakeApi) -> None:
    exo("ai", "model", "create", "org/m1")
    assert [request.signed for request in api.requests] == [False, True]


@pytest.mark.parametrize("verb", ["create", "add", "download"])
@pytest.mark.parametrize("noun", ["dedicated-inference", "ai", "inference"])
def test_create_has_the_aliases_of_the_exo_cli(
    exo: Exo, api: FakeApi, noun: str, verb: str
) -> None:
    assert exo(noun, "model", verb, "org/m1").code == 0
    assert api.lines[-1] == "POST /v2/ai/model"


def test_create_in_another_zone_goes_to_its_endpoint_and_quiet_says_nothing(
    exo: Exo, api: FakeApi
) -> None:
    result = exo("ai", "model", "create", "org/m3", "-z", "ch-gva-2", "-Q")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert api.lines == ["GET /v2/zone", "POST /z/ch-gva-2/v2/ai/model"]


def test_create_waits_for_a_pending_operation(
    exo: Exo, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exo_inference.sdk._waiting.operation_interval", lambda elapsed: 0.0)
    api.operation = {"state": "pending"}
    assert exo("ai", "model", "create", "org/m1").code == 0
    assert api.lines[-1].startswith("GET /v2/operation/")


def test_create_reports_an_operation_that_fails(exo: Exo, api: FakeApi) -> None:
    api.operation = {"state": "failure", "reason": "busy", "message": "not enough disk"}
    result = exo("ai", "model", "create", "org/m1")
    assert result.code == 1
    assert result.out == ""
    assert "busy: not enough disk" in result.err


def test_create_dry_run_changes_nothing_and_says_so(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "model", "create", "org/m1", "--dry-run")
    assert (result.code, result.out) == (0, "Model would be created (dry run).\n")
    assert api.lines[-1] == "POST /v2/ai/model?dry-run=dry-run"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "5.03 GB in 2 files to fetch"),
        (
            ("--dry-run",),
            "dry run: admitted, nothing was recorded; 5.03 GB in 2 files to fetch",
        ),
    ],
)
def test_create_says_how_much_is_fetched(
    exo: Exo, api: FakeApi, flags: tuple[str, ...], message: str
) -> None:
    api.operation = {"state": "success", "message": message}
    result = exo("ai", "model", "create", "Qwen/Qwen3-8B-GGUF:Q4_K_M", *flags)
    assert result.code == 0
    assert result.err.endswith("\n5.03 GB in 2 files to fetch.\n")
    assert api.requests[-1].body == {"name": "Qwen/Qwen3-8B-GGUF:Q4_K_M"}


def test_create_sends_the_revision(exo: Exo, api: FakeApi) -> None:
    exo("ai", "model", "create", "org/m1", "--revision", "v1.0")
    assert api.requests[-1].body == {"name": "org/m1", "revision": "v1.0"}


def test_create_with_an_empty_name_is_a_usage_error(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "model", "create", "")
    assert result.code == 2
    assert "<name> is empty" in result.err
    assert api.requests == []


def test_list_asks_every_zone_and_draws_a_table(exo: Exo, api: FakeApi) -> None:
    first = api.add_model("swiss-ai/Apertus-8B-Instruct-2509")
    second = api.add_model("org/m3", prefix="/z/ch-gva-2/v2", model_size=0)
    result = exo("ai", "model", "list")
    assert result.code == 0
    assert result.out.splitlines() == [
        "┼" + "┼".join("─" * width for width in (38, 35, 10, 8, 8)) + "┼",
        "│ ID                                   │ NAME                              │ ZONE     "
        "│ STATUS │ SIZE   │",
        "┼" + "┼".join("─" * width for width in (38, 35, 10, 8, 8)) + "┼",
        f"│ {first['id']} │ swiss-ai/Apertus-8B-Instruct-2509 │ at-vie-2 │ ready  │ 15 GiB │",
        f"│ {second['id']} │ org/m3                            │ ch-gva-2 │ ready  │        │",
        "┼" + "┼".join("─" * width for width in (38, 35, 10, 8, 8)) + "┼",
    ]
    assert api.lines[0] == "GET /v2/zone"
    assert sorted(api.lines[1:]) == ["GET /v2/ai/model", "GET /z/ch-gva-2/v2/ai/model"]


def test_list_in_one_zone_asks_that_zone_only(exo: Exo, api: FakeApi) -> None:
    model = api.add_model("org/m1")
    result = exo("ai", "model", "ls", "-z", "at-vie-2", "-O", "json")
    assert result.out == (
        f'[{{"id":"{model["id"]}","name":"org/m1","zone":"at-vie-2",'
        '"state":"ready","model_size":"15 GiB"}]\n'
    )
    assert api.lines == ["GET /v2/zone", "GET /v2/ai/model"]


def test_list_as_text_is_tab_separated(exo: Exo, api: FakeApi) -> None:
    model = api.add_model("org/m1")
    result = exo("ai", "model", "ls", "-O", "text")
    assert result.out == f"{model['id']}\torg/m1\tat-vie-2\tready\t15 GiB\n"


def test_list_through_a_template_prints_one_line_each(exo: Exo, api: FakeApi) -> None:
    api.add_model("org/m1")
    api.add_model("org/m2")
    result = exo("ai", "model", "ls", "--output-template", "{{.Name}} <{{ .ModelSize }}>")
    assert result.out == "org/m1 <15 GiB>\norg/m2 <15 GiB>\n"


@pytest.mark.parametrize(("form", "expected"), [("table", ""), ("text", ""), ("json", "[]\n")])
def test_empty_list(exo: Exo, api: FakeApi, form: str, expected: str) -> None:
    result = exo("ai", "model", "list", "-O", form)
    assert (result.code, result.out, result.err) == (0, expected, "")


def test_list_warns_about_a_zone_that_fails_and_prints_the_others(exo: Exo, api: FakeApi) -> None:
    model = api.add_model("org/m1")
    api.answers["GET /z/ch-gva-2/v2/ai/model"] = (500, {"message": "on fire"})
    result = exo("ai", "model", "list", "-O", "text")
    assert result.code == 1
    assert result.out == f"{model['id']}\torg/m1\tat-vie-2\tready\t15 GiB\n"
    assert "warning: zone ch-gva-2: " in result.err
    assert "on fire" in result.err
    assert "error: 1 zone(s) failed\n" in result.err


def test_list_whose_zones_all_refuse_the_key_ends_with_4(exo: Exo, api: FakeApi) -> None:
    for prefix in api.zones.values():
        api.answers[f"GET {prefix}/ai/model"] = (403, {"message": "Invalid request signature"})
    result = exo("ai", "model", "list", "-O", "json")
    assert (result.code, result.out) == (4, "[]\n")
    assert '{"error":{"type":"AuthenticationFailed","message":"2 zone(s) failed"' in result.err


def test_list_gives_up_on_a_zone_that_does_not_answer(exo: Exo, api: FakeApi) -> None:
    import threading

    model = api.add_model("org/m1")
    release = threading.Event()

    def hang(_: object) -> tuple[int, object]:
        release.wait(20)
        return 200, {"models": []}

    api.answers["GET /z/ch-gva-2/v2/ai/model"] = hang
    try:
        result = exo("ai", "model", "list", "--timeout", "300ms", "-O", "text")
    finally:
        release.set()
    assert result.code == 1
    assert result.out.startswith(model["id"])
    assert "warning: zone ch-gva-2: " in result.err


def test_list_of_an_unknown_zone_names_the_known_ones(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "model", "list", "-z", "mars-1")
    assert result.code == 2
    assert "there is no zone 'mars-1'" in result.err
    assert "at-vie-2, ch-gva-2" in result.err


def test_show_resolves_the_name_through_the_list(exo: Exo, api: FakeApi) -> None:
    model = api.add_model("org/m1")
    result = exo("ai", "model", "show", "org/m1")
    assert result.out == (
        f"| ID         | {model['id']} |\n"
        "| Name       | org/m1                               |\n"
        "| Status     | ready                                |\n"
        "| Size       | 15 GiB                               |\n"
        f"| Created At | {TIME}                 |\n"
        f"| Updated At | {TIME}                 |\n"
    )
    assert api.lines == ["GET /v2/zone", "GET /v2/ai/model", f"GET /v2/ai/model/{model['id']}"]


def test_show_by_id_as_json_has_the_keys_in_order(exo: Exo, api: FakeApi) -> None:
    model = api.add_model("org/m1")
    result = exo("ai", "model", "get", model["id"], "-O", "json")
    assert result.out == (
        f'{{"id":"{model["id"]}","name":"org/m1","state":"ready","model_size":"15 GiB",'
        f'"created_at":"{TIME}","updated_at":"{TIME}"}}\n'
    )


def test_show_as_text_has_no_final_newline_in_a_pipe_but_on_a_terminal(
    exo: Exo, api: FakeApi
) -> None:
    model = api.add_model("org/m1")
    line = f"{model['id']}\torg/m1\tready\t15 GiB\t{TIME}\t{TIME}"
    assert exo("ai", "model", "get", "org/m1", "-O", "text").out == line
    assert exo("ai", "model", "get", "org/m1", "-O", "text", tty=True).out == line + "\n"


def test_show_adds_what_only_our_server_sends_after_the_known_keys(exo: Exo, api: FakeApi) -> None:
    api.add_model(
        "org/m1",
        state="downloading",
        state_details="fetching model.safetensors",
        downloaded_bytes=4017428480,
        revision="abc",
    )
    keys = list(json.loads(exo("ai", "model", "show", "org/m1", "-O", "json").out))
    assert keys[:6] == ["id", "name", "state", "model_size", "created_at", "updated_at"]
    assert keys[6:] == ["state_details", "downloaded_bytes", "revision"]
    table = exo("ai", "model", "show", "org/m1").out
    assert "| Status Details | fetching model.safetensors           |\n" in table
    assert "| Downloaded     | 3.7 GiB of 15 GiB (25 %)             |\n" in table
    assert len(exo("ai", "model", "show", "org/m1", "-O", "text").out.split("\t")) == 6


def test_show_of_an_unknown_name_suggests_the_closest(exo: Exo, api: FakeApi) -> None:
    api.add_model("org/m1")
    result = exo("ai", "model", "show", "org/m2")
    assert (result.code, result.out) == (1, "")
    assert result.err == "error: there is no model 'org/m2'\nDid you mean org/m1?\n"


@pytest.mark.parametrize("verb", ["delete", "del", "rm"])
def test_delete_asks_and_deletes_on_yes(exo: Exo, api: FakeApi, verb: str) -> None:
    model = api.add_model("org/m2")
    result = exo("ai", "model", verb, "org/m2", stdin="yes\n")
    question = '[+] Are you sure you want to delete model "org/m2"? [yN]: '
    assert (result.code, result.out) == (0, question + "Model(s) deleted.\n")
    assert api.lines == ["GET /v2/zone", "GET /v2/ai/model", f"DELETE /v2/ai/model/{model['id']}"]


@pytest.mark.parametrize("answer", ["n\n", "\n", "no\n", "yess\n"])
def test_delete_does_nothing_on_any_other_answer(exo: Exo, api: FakeApi, answer: str) -> None:
    api.add_model("org/m2")
    result = exo("ai", "model", "delete", "org/m2", stdin=answer)
    assert result.code == 0
    assert result.out.endswith("[yN]: ")
    assert not [line for line in api.lines if line.startswith("DELETE")]


def test_delete_without_an_answer_fails_and_names_the_flag(exo: Exo, api: FakeApi) -> None:
    api.add_model("org/m2")
    result = exo("ai", "model", "delete", "org/m2")
    assert result.code == 1
    assert "the input ended" in result.err
    assert "--force" in result.err


def test_delete_of_several_reads_one_answer_for_each(exo: Exo, api: FakeApi) -> None:
    api.add_model("org/m1")
    api.add_model("org/m2")
    result = exo("ai", "model", "delete", "org/m1", "org/m2", stdin="y\nY\n")
    assert result.code == 0
    assert result.out.endswith("Model(s) deleted.\n")
    assert api.models["/v2"] == []


def test_one_no_of_several_deletes_nothing(exo: Exo, api: FakeApi) -> None:
    api.add_model("org/m1")
    api.add_model("org/m2")
    assert exo("ai", "model", "delete", "org/m1", "org/m2", stdin="y\nn\n").code == 0
    assert len(api.models["/v2"]) == 2


def test_forced_delete_warns_about_unknown_names_and_deletes_the_rest(
    exo: Exo, api: FakeApi
) -> None:
    api.add_model("org/m1")
    result = exo("ai", "model", "del", "org/m1", "nope", "-f")
    assert (result.code, result.out) == (0, "Model(s) deleted.\n")
    assert "warning: nope not found.\n" in result.err
    assert api.models["/v2"] == []


def test_delete_of_an_unknown_name_deletes_nothing(exo: Exo, api: FakeApi) -> None:
    api.add_model("org/m1")
    result = exo("ai", "model", "delete", "org/m1", "nope", stdin="y\ny\n")
    assert (result.code, result.out) == (1, "")
    assert len(api.models["/v2"]) == 1


def test_a_model_named_twice_is_deleted_once(exo: Exo, api: FakeApi) -> None:
    model = api.add_model("org/m1")
    assert exo("ai", "model", "delete", "org/m1", model["id"], "-f").code == 0
    assert len([line for line in api.lines if line.startswith("DELETE")]) == 1


def test_delete_of_a_model_in_use_names_the_deployments(exo: Exo, api: FakeApi) -> None:
    model = api.add_model("org/m1")
    api.answers[f"DELETE /v2/ai/model/{model['id']}"] = (412, {"deployments": ["d1", "d2"]})
    result = exo("ai", "model", "delete", "org/m1", "-f")
    assert (result.code, result.out) == (1, "")
    assert "Precondition Failed" in result.err
    assert "d1" in result.err
    assert "d2" in result.err


def test_several_failed_deletes_are_all_reported(exo: Exo, api: FakeApi) -> None:
    for name in ("org/m1", "org/m2"):
        model = api.add_model(name)
        api.answers[f"DELETE /v2/ai/model/{model['id']}"] = (409, {"message": f"{name} is busy"})
    result = exo("ai", "model", "delete", "org/m1", "org/m2", "-f")
    assert result.code == 1
    assert "org/m1 is busy" in result.err
    assert "org/m2 is busy" in result.err
    assert "error: 2 models could not be deleted\n" in result.err


def test_two_models_of_one_name_need_the_id(exo: Exo, api: FakeApi) -> None:
    first, second = api.add_model("org/m1"), api.add_model("org/m1")
    result = exo("ai", "model", "show", "org/m1")
    assert result.code == 1
    assert first["id"] in result.err
    assert second["id"] in result.err


def test_delete_without_names_is_a_usage_error(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "model", "delete")
    assert result.code == 2
    assert "missing argument '<name-or-id>...'" in result.err
    assert api.requests == []


def test_templates_of_show_may_use_added_fields(exo: Exo, api: FakeApi) -> None:
    api.add_model("org/m1", state_details="fetching")
    template = "{{.StateDetails}}{{.Revision}}"
    result = exo("ai", "model", "show", "org/m1", "--output-template", template)
    assert (result.code, result.out) == (0, "fetching")


def test_delete_waits_until_the_model_is_gone(exo: Exo, api: FakeApi) -> None:
    model = api.add_model("org/m1")
    result = exo("ai", "model", "delete", "org/m1", "-f", "--wait", "--timeout", "10s")
    assert (result.code, result.out) == (0, "Model(s) deleted.\n")
    assert 'Waiting until model "org/m1" is gone' in result.err
    assert api.lines[-1] == f"GET /v2/ai/model/{model['id']}"


def test_list_asks_at_most_eight_zones_at_a_time(exo: Exo, api: FakeApi) -> None:
    import threading

    api.zones = {f"zone-{n}": f"/z/{n}/v2" for n in range(20)}
    busy, most, lock, full = 0, 0, threading.Lock(), threading.Event()

    def note(_: object) -> tuple[int, object]:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
            if busy == 8:
                full.set()
        full.wait(10)
        with lock:
            busy -= 1
        return 200, {"models": []}

    for prefix in api.zones.values():
        api.answers[f"GET {prefix}/ai/model"] = note
    assert exo("ai", "model", "list", "-O", "json").out == "[]\n"
    assert most == 8
    assert len(api.requests) == 21

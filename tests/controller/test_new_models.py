"""What a new model may be named, judged before its source is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from exo_inference.controller.admission.fields import Fields
from exo_inference.controller.admission.model import check_new_model, try_resolve
from exo_inference.controller.admission.problems import Refused
from exo_inference.hub.base import ModelSource
from exo_inference.wire import CreateModel


def never_asked(name: str) -> ModelSource:
    raise AssertionError(f"nothing is to be looked up for {name}")


@pytest.mark.parametrize("path", ["/", "/no/such/dir", "/etc/passwd"])
def test_a_cluster_refuses_folders_alike_and_looks_at_none(path: str) -> None:
    name = f"file://{path}"
    with pytest.raises(Refused, match="which a cluster does not have") as refused:
        check_new_model(Fields(CreateModel, {"name": name}), never_asked, is_cluster=True)
    assert refused.value.status_code == 400
    assert refused.value.hint == "Use the name of a model on the Hub, such as Qwen/Qwen3-0.6B."


def test_a_machine_takes_folders(tmp_path: Path) -> None:
    from exo_inference.hub import source_for

    name = f"file://{tmp_path}"
    assert check_new_model(Fields(CreateModel, {"name": name}), source_for) == {"name": name}


async def test_a_damaged_configuration_is_to_be_mended(tmp_path: Path) -> None:
    from exo_inference.hub import source_for

    (tmp_path / "config.json").write_bytes(b"{")
    name = f"file://{tmp_path}"
    with pytest.raises(Refused, match=r"config\.json is not JSON") as refused:
        await try_resolve(source_for(name), name, revision=None, token=None)
    assert refused.value.hint == "Mend its files, or choose another model."

"""Fields of an object that become names."""

from __future__ import annotations

import pytest

from exo_inference.kubernetes_api.objects import NAME_ANNOTATION, read_object
from exo_inference.resources import (
    InferenceDeployment,
    InferenceModel,
    model_object_name,
)

from .test_identity import CHOSEN, raw


def test_a_model_is_named_after_its_source_whatever_it_says_itself() -> None:
    """Or one that is called as another source is would be taken for it."""
    name = model_object_name("org/victim")
    stored = read_object(InferenceModel, raw(name, kind="model", asks=f"{name}/{CHOSEN}"))
    assert stored.resource is not None
    assert stored.resource.metadata.name == model_object_name("org/m1")


@pytest.mark.parametrize("wanted", ["../x", "Upper", "a" * 64, "a b", "", "-a", "a.b", "a\n"])
def test_a_new_name_that_is_no_dns_label_is_passed_over(wanted: str) -> None:
    item = raw()
    item["metadata"]["annotations"][NAME_ANNOTATION] = wanted
    stored = read_object(InferenceDeployment, item)
    assert stored.resource is not None
    assert stored.resource.metadata.name == "chat"

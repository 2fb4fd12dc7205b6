"""The picture of the packages: layers by who imports whom, and no circle."""

from __future__ import annotations

from graphlib import CycleError

import pytest

from scripts import draw_packages


def test_a_package_stands_below_all_that_import_it() -> None:
    imports = {
        "cli": frozenset({"sdk", "wire"}),
        "sdk": frozenset({"wire"}),
        "gateway": frozenset({"wire"}),
        "wire": frozenset[str](),
    }
    assert draw_packages.layers_of(imports) == [["cli"], ["gateway", "sdk"], ["wire"]]


def test_a_circle_cannot_be_drawn() -> None:
    with pytest.raises(CycleError):
        draw_packages.layers_of({"sdk": frozenset({"wire"}), "wire": frozenset({"sdk"})})


def test_the_pictures_show_the_imports_as_they_are() -> None:
    page = draw_packages.PAGE.read_text("utf-8")
    assert draw_packages.page_with_pictures(page) == page, "run `make docs`"

"""The table of request fields in the engine's README is what the engine does."""

from __future__ import annotations

from exo_engine.server.known_fields import ROUTES

from scripts import draw_engine_fields
from scripts.draw_engine_fields import state


def test_page_is_up_to_date():
    page = draw_engine_fields.PAGE.read_text("utf-8")
    assert draw_engine_fields.filled(page) == page, "run `make docs`"


def test_states_are_those_of_the_lists():
    chat = ROUTES["/v1/chat/completions"]
    assert state("messages", chat) == "yes"
    assert state("user", chat) == "harmless"
    assert state("use_beam_search", chat) == "refused"
    assert state("audio", chat) == "refused"
    assert state("input", chat) == "–"

"""The reference pages and the code name the same things, and no link leads nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from exo_inference.controller.http.routes import ROUTES

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])


def test_every_route_is_in_the_http_reference_and_none_besides() -> None:
    served = {
        f"{method} {route.path}"
        for route in ROUTES
        for method in route.methods or ()
        if method != "HEAD"
    }
    text = (ROOT / "docs/reference/http-api.md").read_text()
    assert set(re.findall(r"^\| `([A-Z]+ /[^`]*)`", text, re.MULTILINE)) == served


def test_sdk_reference_is_up_to_date() -> None:
    script = ROOT / "scripts" / "generate_sdk_reference.py"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_into_pages_name_headings_that_are_there(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", page.read_text())
    missing = [
        f"{path}#{anchor}"
        for path, anchor in targets
        if anchor not in anchors((page.parent / path) if path else page)
    ]
    assert missing == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

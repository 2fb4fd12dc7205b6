"""A template that came with a model can use up neither memory nor time."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest
from exo_engine.errors import ConfigurationError
from exo_engine.tokenizer import template_limits
from exo_engine.tokenizer.chat_template import ChatTemplate
from exo_engine.tokenizer.template_sources import TemplateRefused

USER = [{"role": "user", "content": "hi"}]
BOMBS = {
    "repeat": '{{ "a" * 10**10 }}',
    "repeat a list": "{{ [0] * 10**10 }}",
    "repeat, turned round": '{{ 10**10 * "a" }}',
    "power": "{{ 10**100000 }}",
    "product": "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}"
    "{% endfor %}{{ n.x }}",
    "doubling by ~": "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling by +": "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "nested lists": "{% set n = namespace(x=['abcdef']) %}{% for i in range(12) %}"
    "{% set n.x = [n.x] * 100 %}{% endfor %}{{ n.x }}",
    "nested lists as JSON": "{% set n = namespace(x=['abcdef']) %}{% for i in range(12) %}"
    "{% set n.x = [n.x] * 100 %}{% endfor %}{{ n.x | tojson }}",
    "nested lists as text": "{% set n = namespace(x=['abcdef']) %}{% for i in range(12) %}"
    "{% set n.x = [n.x] * 100 %}{% endfor %}{{ n.x | string | length }}",
    "nested lists in upper case": "{% set n = namespace(x=['abcdef']) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | upper | length }}",
    "sum of lists": "{{ ([[0] * 10**4] * 10**4) | sum(start=[]) | length }}",
    "ljust": '{{ "a".ljust(10**10) }}',
    "zfill": '{{ "a".zfill(10**10) }}',
    "center": '{{ "a".center(10**10) }}',
    "expandtabs": '{{ "\\t".expandtabs(10**10) }}',
    "to_bytes": '{{ (5).to_bytes(10**10, "big") }}',
    "center filter": '{{ "a" | center(10**10) }}',
    "indent filter": '{{ "a\\nb" | indent(10**10) }}',
    "batch filter": "{{ [1] | batch(10**10, 0) | list }}",
    "slice filter": "{{ [1] | slice(10**10) | list }}",
    "round filter": '{{ 5 | round(10**10, "ceil") }}',
    "json indent": "{{ [1] | tojson(indent=10**10) }}",
    "percent width": '{{ "%10000000000d" % 1 }}',
    "percent star": '{{ "%*d" % (10**10, 1) }}',
    "format width": '{{ "{:>10000000000}".format(1) }}',
    "format width by value": '{{ "{:>{}}".format(1, 10**10) }}',
    "format filter": '{{ "%10000000000d" | format(1) }}',
    "replace": '{% set x = "a" * 10**6 %}{{ x.replace("a", x) }}',
    "replace filter": '{% set x = "a" * 10**6 %}{{ x | replace("a", x) }}',
    "join": '{% set x = "a" * 10**6 %}{{ x.join([x] * 1000) }}',
    "join filter": '{% set x = "a" * 10**6 %}{{ ([x] * 1000) | join(x) }}',
    "join of a generator": '{% set x = "a" * 10**6 %}{{ "".join(([x] * 99) | map("upper")) }}',
    "translate": '{% set x = "a" * 10**6 %}{{ x.translate({97: x}) }}',
    "output": '{% set x = "a" * 10**6 %}{% for i in range(10**5) %}{{ x }}{% endfor %}',
    "range": "{{ range(10**10) | list }}",
    "kept values": "{% set n = namespace(x=[]) %}{% for i in range(1000) %}"
    '{% set n.x = n.x + ["a" * 10**7 ~ i] %}{% endfor %}',
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
}

LONG = {"nested lists as text", "nested lists in upper case"}
"""Those that take longest: nested lists are among the others, too."""


@pytest.fixture
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.3)
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 2**20  # KiB


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(each, id=name, marks=pytest.mark.slow if name in LONG else [])
        for name, each in BOMBS.items()
    ],
)
@pytest.mark.usefixtures("_little_memory")
def test_template_that_blows_up_is_refused_with_the_reason(source: str) -> None:
    with pytest.raises(TemplateRefused, match=r"cannot render this conversation: (it|Range) .+"):
        ChatTemplate({"default": source}, special_tokens={}, content_format="string").render(USER)


@pytest.mark.usefixtures("_little_memory")
def test_template_that_blows_up_on_any_message_does_not_load() -> None:
    with pytest.raises(ConfigurationError, match="more than 16000000 elements") as caught:
        ChatTemplate({"default": '{{ "a" * 10**10 }}'}, special_tokens={})
    assert caught.value.exit_code == 78


def test_deep_template_does_not_load() -> None:
    with pytest.raises(ConfigurationError, match="cannot compile"):
        ChatTemplate({"default": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"}, special_tokens={})


def test_what_templates_really_do_is_unharmed() -> None:
    source = (
        "{% set n = namespace(t='', k=0) %}{% for m in messages %}{% set n.t = n.t + m.content %}"
        "{% set n.k = n.k + 1 %}{% endfor %}{{ '=' * 8 }}{{ n.t | length }} {{ n.k * 3 % 7 }} "
        "{{ 'a%sb' % 'x' }}{{ 'a%%' | format }}{{ '{}-{a}'.format(1, a=2) }} "
        "{{ 'a b'.split(' ') | join(', ') }} {{ 'abc' | replace('b', 'x') }} "
        "{{ [1, 2] | map('string') | join('+') }} {{ '7'.zfill(3) }} {{ 2 ** 10 }} "
        "{{ 'x\\ny' | indent(2) }} {{ {'a': [1]} | tojson(indent=2) }} {{ 1.5 * 2 }} {{ 'a' ~ 1 }}"
    )
    messages = [{"role": "user", "content": "x" * 1000}] * 500
    text = ChatTemplate({"default": source}, special_tokens={}).render(messages)
    assert text == (
        '========500000 2 axba%1-2 a, b axc 1+2 007 1024 x\n  y {\n  "a": [\n    1\n  ]\n} 3.0 a1'
    )

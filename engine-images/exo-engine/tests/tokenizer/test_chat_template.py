"""Rendering equals `apply_chat_template` of transformers, and foreign templates stay caged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exo_engine.errors import ConfigurationError
from exo_engine.tokenizer import Tokenizer
from exo_engine.tokenizer.chat_template import ChatTemplate
from exo_engine.tokenizer.template_sources import TemplateRefused, find_templates

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Find <b>things</b> & more — größer",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }
]
CHAT = [
    {"role": "system", "content": "  Be brief. "},
    {"role": "user", "content": "What's <up> & \"who\"? 日本 🙂"},
    {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "find", "arguments": {"q": "ü"}}}]},
    {"role": "tool", "content": "found", "name": "find"},
    {"role": "assistant", "content": "It is found.", "reasoning_content": "thinking..."},
    {"role": "user", "content": "Thanks"},
]  # fmt: skip

TEMPLATES = {
    "chatml": (
        "{%- for message in messages %}\n"
        "    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n"
    ),
    "llama-like": (
        "{{ bos_token }}{% set ns = namespace(first=true) %}\n"
        "{% for message in messages %}\n"
        "  {% if message['role'] == 'tool' %}{% continue %}{% endif %}\n"
        "[{{ loop.index0 }}:{{ message['role'] | upper }}] {{ message['content'] | trim }}{{ eos_token }}\n"
        "{% if ns.first %}{% set ns.first = false %}first{% endif %}\n"
        "{% endfor %}\n"
    ),
    "tools": (
        "{% if tools %}{{ tools | tojson(indent=2) }}{% for t in tools %}{{ t | tojson }}"
        "{% endfor %}{% endif %}{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
        "{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% endif %}{% endfor %}"
    ),
    "generation block": (
        "{% set x = 'out' %}{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% generation %}{% set x = 'in' %}{{ x }}{{ m.content }}{% endgeneration %}"
        "{% endif %}{{ x }}{% endfor %}"
    ),
    "reasoning": "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }};{% endfor %}",
    "date and blanks": "  {% if true %}\n  {{ strftime_now('%Y') }}\n  {% endif %}\nend",
    "undefined": "{{ nothing }}{% if nothing is defined %}x{% else %}y{% endif %}{{ unk_token }}",
}


@pytest.fixture(scope="module")
def oracle(byte_level_dir: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(byte_level_dir)


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
@pytest.mark.parametrize("with_tools", [True, False], ids=["tools", "no tools"])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_rendering_equals_transformers(
    oracle: Any, byte_level_dir: Path, template: str, with_tools: bool, is_open: bool
) -> None:
    tokenizer = Tokenizer(byte_level_dir)
    tools: Any = TOOLS if with_tools else None
    ours = ChatTemplate({"default": template}, special_tokens=tokenizer.special_tokens)
    expected = oracle.apply_chat_template(
        CHAT, tools=tools, chat_template=template, add_generation_prompt=is_open, tokenize=False
    )
    assert ours.render(CHAT, tools=tools, add_generation_prompt=is_open) == expected


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATES["chatml"],
        "{% for m in messages %}{{ m.role }}: {{ m.content | trim }} <end> {% endfor %}",
    ],
    ids=["plain", "trimming"],
)
@pytest.mark.parametrize("content", ["It was", "It was  ", "Yes, "])
def test_continuing_the_last_message_equals_transformers(
    oracle: Any, template: str, content: str
) -> None:
    chat = [*CHAT[:2], {"role": "assistant", "content": content}]
    ours = ChatTemplate({"default": template}, special_tokens=oracle.special_tokens_map)
    expected = oracle.apply_chat_template(
        chat, chat_template=template, continue_final_message=True, tokenize=False
    )
    rendered = ours.render(chat, add_generation_prompt=False, continue_final_message=True)
    assert rendered == expected


def test_tokens_of_texts_equal_transformers(oracle: Any, byte_level_dir: Path) -> None:
    tokenizer = Tokenizer(byte_level_dir)
    for text in ("The quick <|im_start|> größe und 🙂", "", "  a\n"):
        for is_special_added in (True, False):
            ours = tokenizer.encode(text, add_special_tokens=is_special_added)
            assert ours == oracle.encode(text, add_special_tokens=is_special_added)
        ids = tokenizer.encode(text, add_special_tokens=True)
        for is_skipped in (True, False):
            decoded = oracle.decode(
                ids, skip_special_tokens=is_skipped, clean_up_tokenization_spaces=False
            )
            assert tokenizer.decode(ids, skip_special_tokens=is_skipped) == decoded


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{{ ('%s' | attr('format'))('{0.__class__}') }}{{ ''['__class__']['__base__'] }}",
        "{{ raise_exception('only two roles, please') }}",
        "{{ 1 / 0 }}",
        "{% for m in messages %}{{ m.content + 3 }}{% endfor %}",
    ],
)
def test_hostile_or_broken_template_is_refused_and_nothing_leaks(attack: str) -> None:
    template = ChatTemplate({"default": attack}, special_tokens={})
    try:
        text = template.render(CHAT[:2])
    except TemplateRefused as exc:
        assert exc.message  # noqa: PT017  (some attacks render to nothing instead)
    else:
        assert "<class" not in text


def test_template_with_a_syntax_error_names_the_flag() -> None:
    with pytest.raises(ConfigurationError, match="chat template") as caught:
        ChatTemplate({"default": "{% if %}"}, special_tokens={})
    assert caught.value.param == "chat-template"


def test_parts_reach_templates_that_understand_them_and_others_get_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}]
    loops = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}"
    )
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert ChatTemplate({"default": loops}, special_tokens={}).render(messages) == "<a><b>"
    assert ChatTemplate({"default": plain}, special_tokens={}).render(messages) == "a\nb"
    forced = ChatTemplate({"default": loops}, special_tokens={}, content_format="string")
    assert forced.render(messages) == "a\nb"


def test_developer_is_system_for_templates_that_do_not_know_it() -> None:
    messages = [{"role": "developer", "content": "x"}]
    old = ChatTemplate({"default": "{{ messages[0].role }}"}, special_tokens={})
    new = ChatTemplate(
        {"default": "{% if messages[0].role == 'developer' %}dev{% endif %}"}, special_tokens={}
    )
    assert (old.render(messages), new.render(messages)) == ("system", "dev")


def test_variables_of_the_request_win_over_those_of_the_server() -> None:
    template = ChatTemplate(
        {"default": "{{ enable_thinking }}{{ style }}"},
        special_tokens={},
        variables={"enable_thinking": True, "style": "s"},
    )
    assert template.render(CHAT, variables={"enable_thinking": False}) == "Falses"


@pytest.mark.parametrize("place", ["config", "list", "jinja", "both", "override", "override file"])
def test_templates_are_found_where_models_keep_them(
    tmp_path: Path, byte_level_dir: Path, place: str
) -> None:
    config: dict[str, Any] = {}
    override = None
    if place in ("config", "both"):
        config["chat_template"] = "right" if place == "config" else "wrong"
    if place == "list":
        config["chat_template"] = [
            {"name": "default", "template": "right"},
            {"name": "tool_use", "template": "with tools"},
        ]
    if place in ("jinja", "both"):
        (tmp_path / "chat_template.jinja").write_text("right")
    if place == "override":
        override = "{{ 'right' }}"
    if place == "override file":
        override = str(tmp_path / "mine.jinja")
        Path(override).write_text("right")
    (tmp_path / "tokenizer.json").write_text((byte_level_dir / "tokenizer.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    sources = find_templates(Tokenizer(tmp_path), tmp_path, override=override)
    template = ChatTemplate(sources, special_tokens={})
    assert template.render(CHAT) == "right"
    assert template.render(CHAT, tools=TOOLS) == ("with tools" if place == "list" else "right")


def test_base_model_has_no_template(byte_level_dir: Path) -> None:
    assert find_templates(Tokenizer(byte_level_dir), byte_level_dir) == {}


def test_ends_of_sequence_are_gathered_from_all_files(tmp_path: Path, byte_level_dir: Path) -> None:
    (tmp_path / "tokenizer.json").write_text((byte_level_dir / "tokenizer.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 1]}))
    assert Tokenizer(tmp_path).eos_token_ids == (2, 1, 3)

"""Chat templates: the model's own, what is wrong with them in the wild, and the built-in ones."""

from __future__ import annotations

import pytest

from edgespec.errors import ModelError
from edgespec.interfaces import Message
from edgespec.target.builtin_templates import BY_ARCHITECTURE, SOURCES, TOKENS
from edgespec.target.template import template_for

SYSTEM = Message("system", "Be brief.")
TALK = [SYSTEM, Message("user", "Hi"), Message("assistant", "Hello."), Message("user", "Who?")]
PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_the_models_own_template() -> None:
    template = template_for(PLAIN, "llama")
    assert (template.name, template.note) == ("gguf", None)
    assert template.render(TALK) == "[system]Be brief.[user]Hi[assistant]Hello.[user]Who?[assistant]"
    assert template.render(TALK[:2], add_generation_prompt=False) == "[system]Be brief.[user]Hi"


def test_start_and_end_tokens() -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    assert template_for(source, "llama", bos="<s>", eos="</s>").render(TALK[1:2]) == "<s>Hi</s>"


def test_what_templates_in_the_wild_use() -> None:
    source = (
        "{%- set ns = namespace(n=0) -%}\n"
        "{%- for m in messages -%}\n"
        "  {%- if loop.index > 9 -%}{%- break -%}{%- endif -%}\n"
        "  {%- set ns.n = ns.n + 1 -%}\n"
        "  {%- generation -%}{{ m.content | trim }}{%- endgeneration -%}|\n"
        "{%- endfor -%}\n"
        "{{ ns.n }} {{ {'ü': '<&>'} | tojson }} {{ strftime_now('%Y') | length }} {{ tools is none }}"
    )
    assert template_for(source, "llama").render(TALK[1:2]) == 'Hi|1 {"ü": "<&>"} 4 True'


def test_user_text_is_not_escaped_or_run() -> None:
    text = "<b>&\"' {{ 1 + 1 }} {% raw %}"
    assert template_for(PLAIN, "llama").render([Message("user", text)]) == f"[user]{text}[assistant]"


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}",
        "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}",
    ],
)
def test_a_template_without_a_system_role_gets_it_in_the_first_question(source: str) -> None:
    template = template_for(source, "llama")
    assert template.name == "gguf"
    assert template.note is not None
    assert "system" in template.note
    assert template.render(TALK) == "[user]Be brief.\n\nHi[assistant]Hello.[user]Who?"
    assert template.render(TALK[1:2]) == "[user]Hi"
    assert template.render([SYSTEM]) == "[user]Be brief."


def test_a_template_that_wants_content_in_parts() -> None:
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}"
    assert template_for(source, "llama").render(TALK[1:2]) == "Hi;"


def test_a_template_that_wants_a_list_of_tools() -> None:
    source = "{% for tool in tools %}{{ tool }}{% endfor %}" + PLAIN
    assert template_for(source, "llama").render(TALK[1:2]) == "[user]Hi[assistant]"


def test_extra_variables() -> None:
    source = PLAIN + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    assert template_for(source, "qwen3", variables={"enable_thinking": False}).render(TALK[1:2]).endswith("</think>")
    assert template_for(source, "qwen3").render(TALK[1:2]).endswith("[assistant]")


def test_a_conversation_the_template_refuses_is_one_line() -> None:
    check = "messages | length > 1 and messages[0].role == messages[1].role"
    source = f"{{% if {check} %}}{{{{ raise_exception('two\nusers') }}}}{{% endif %}}"
    template = template_for(source + PLAIN, "llama")
    with pytest.raises(ModelError, match="two users") as caught:
        template.render([Message("user", "a"), Message("user", "b")])
    assert "\n" not in str(caught.value)


BROKEN = {
    "syntax": "{% if %}",
    "always raises": "{{ raise_exception('never') }}",
    "ignores the user": "hello",
    "unknown name": "{{ missing.attribute }}",
    "private": "{{ ''.__class__.__mro__ }}",
    "mutation": "{{ messages.append(1) }}",
    "long text": "{{ 'a' * 1000000000 }}",
    "long list": "{{ [0] * 1000000000 }}",
    "power": "{{ 9 ** 99999999 }}",
    "endless loop": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "long range": "{% for i in range(999999999) %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "no filter": "{{ messages | nothing }}",
    "wrong type": "{{ 1 + 'a' }}",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_template_is_replaced_and_reported(name: str) -> None:
    template = template_for(BROKEN[name], "qwen2")
    assert template.name == "chatml"
    assert template.note is not None
    assert "does not work" in template.note
    assert "chatml" in template.note
    assert "\n" not in template.note
    assert template.render(TALK[1:2]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("source", [None, "", "  \n"])
def test_no_template(source: str | None) -> None:
    assert template_for(source, "gemma2").name == "gemma"
    raw = template_for(source, "llama")
    assert raw.name == "raw"
    assert raw.note == "the model has no chat template: the text is sent to it as it is, without roles"
    assert raw.render(TALK) == "Be brief.\n\nHi\n\nHello.\n\nWho?"


def test_the_vocabulary_decides_where_the_architecture_does_not() -> None:
    assert template_for(None, "llama", has_token=TOKENS["llama3"].__contains__).name == "llama3"
    assert template_for(None, "llama", has_token=TOKENS["chatml"].__contains__).name == "chatml"
    assert template_for(None, "qwen2", has_token=lambda _: False).name == "raw"


@pytest.mark.parametrize("name", SOURCES)
def test_every_builtin_shows_the_whole_talk_in_order(name: str) -> None:
    text = template_for(SOURCES[name], "none", bos="<s>", eos="</s>").render(TALK)
    places = [text.index(message.content) for message in TALK]
    assert places == sorted(places)


def test_the_tables_name_only_known_templates() -> None:
    assert {name for names in BY_ARCHITECTURE.values() for name in names} <= set(SOURCES)
    assert set(TOKENS) == set(SOURCES)

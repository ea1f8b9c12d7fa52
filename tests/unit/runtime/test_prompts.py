"""Instructions as templates: what they can say, what their errors name, and what no text can reach."""

import os
import time
from typing import Any

import pytest
from django.conf import settings
from django.utils import translation
from hypothesis import example, given, strategies as st

from ravi_django.kernel import InvalidInputError
from tests.support.cases import case, refused
from tests.support.world import PROMPT_ENGINE_FILTERS, PROMPT_ENGINE_TAGS, PromptTemplate

FACTS = {
    "agent": {"name": "Helper", "address": "react/helper"},
    "user": {"id": "7", "username": "olga", "full_name": "Olga O."},
    "today": "2030-12-31",
    "session": "s-1",
}


def render(text: str, values: dict[str, Any] | None = None, **declared: Any) -> str:
    known = {name: {} for name in values or {}} | declared
    return PromptTemplate(text, known).render(values, **FACTS)


def refusal(text: str, values: dict[str, Any] | None = None, **declared: Any) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        render(text, values, **declared)
    return caught.value


def test_values_conditions_and_loops() -> None:
    text = (
        "You help {{ company }}.{% if tone == 'kind' %} Be kind.{% endif %}\n"
        "{% for rule in rules %}{{ forloop.counter }}. {{ rule|upper }}\n{% empty %}No rules.{% endfor %}"
        "{% for name, price in prices.items %}{{ name }} costs {{ price.eur }}.{% endfor %}"
        "{% with first=rules.0 %}{{ first }}{% endwith %}{# a note #}{% verbatim %}{{ kept }}{% endverbatim %}"
    )
    values = {"company": "ACME & Söhne", "tone": "kind", "rules": ["a", "b"], "prices": {"tea": {"eur": 2}}}
    shown = render(text, values)
    assert shown == "You help ACME & Söhne. Be kind.\n1. A\n2. B\ntea costs 2.a{{ kept }}", "not escaped for HTML"
    for text in ("<b>{{ x }}</b>", "<b>", "{% if x %}<b>{% endif %}", "{% spaceless %}<b>{% endspaceless %}"):
        assert type(render(text, {"x": "<i>"})) is str, "what comes out is not marked as safe HTML"
    text = "{% for row in rows %}{{ forloop.counter }}. {{ row.name|title }}: {{ row.text }}\n{% endfor %}"
    shown = render(text, {"rows": [{"name": f"rule {n}", "text": "do it " * 5} for n in range(1000)]})
    assert shown.endswith("1000. Rule 999: " + "do it " * 5 + "\n")


def test_the_built_in_names() -> None:
    names = ["agent.name", "agent.address", "user.id", "user.username", "user.full_name", "today", "session"]
    text = " ".join(f"{{{{ {name} }}}}" for name in names)
    assert render(text) == "Helper react/helper 7 olga Olga O. 2030-12-31 s-1"
    assert PromptTemplate(text).render() == " " * 6


def test_defaults_fill_in_and_what_is_optional_is_empty() -> None:
    declared = {"tone": {"default": "kind"}, "extra": {"description": "more"}, "limit": {"default": 0}}
    assert render("{{ tone }}|{{ extra }}|{{ limit }}", {}, **declared) == "kind||0"
    assert render("{{ tone }}", {"tone": "dry"}, **declared) == "dry"
    assert render("{{ tone }}", {"tone": None}, **declared) == "kind"


def test_a_key_that_is_not_there_may_be_asked_for_but_not_printed() -> None:
    values = {"customer": {"name": "Ann"}}
    assert render("{% if customer.vip %}VIP{% else %}guest{% endif %}", values) == "guest"
    assert render("{{ customer.vip|default:'no' }}", values) == "no"
    error = refusal("Dear\n{{ customer.nmae }}", values)
    assert error.field == "variables.customer"
    assert "line 2" in str(error) and "'nmae'" in str(error)


def test_the_same_text_in_every_locale() -> None:
    text = "{{ n }} {{ n|floatformat:2 }} {{ flag|yesno }} {{ big|filesizeformat }}"
    values = {"n": 1234.5, "flag": True, "big": 12345678}
    with translation.override("en"):
        expected = render(text, values)
    with translation.override("de"):
        assert render(text, values) == expected
    assert expected.startswith("1234.5 1234.50 yes 11.8")


def test_an_undeclared_variable_is_named_wherever_it_stands() -> None:
    for text in (
        "{{ custmer }}",
        "{{ custmer.name }}",
        "{% if custmer %}{% endif %}",
        "{% if known and not custmer == 3 %}{% endif %}",
        "{% if known %}{% else %}{{ custmer }}{% endif %}",  # not rendered
        "{% for x in custmer %}{% endfor %}",
        "{% with x=custmer %}{% endwith %}",
        "{{ known|default:custmer }}",
        "{% firstof known custmer %}",
        "{% cycle 'a' custmer %}",
    ):
        with case(text):
            error = refusal("one\n" + text, {"known": "x"})
            assert error.field == "system_instructions"
            assert "line 2: 'custmer' is not declared" in str(error)
    for text in ("{{ x }}", "{% if x > 3 %}yes{% endif %}", "{{ known|default:x }}"):
        with case(text):
            error = refusal("{% for x in known %}{% endfor %}" + text, {"known": ["a"]})
            assert error.field == "system_instructions"
            assert "'x' has no value here" in str(error)


def test_a_syntax_error_gives_line_and_words() -> None:
    for text, words in (
        ("a\n{% if x %}", "line 2"),
        ("a\nb {{ x|nofilter }}", "line 2: there is no filter 'nofilter'"),
        ("{% endif %}", "line 1: there is no tag 'endif'"),
        ("{{ }}", "line 1"),
        ("{% for %}{% endfor %}", "line 1"),
        ("{% with %}{% endwith %}", "line 1"),
        ("{% if x %}{% include 'a' %}{% endif %}", "there is no tag 'include' here"),
        ("{{ x y }}", "line 1"),
    ):
        with case(text):
            error = refusal(text, {"x": "1"})
            assert error.field == "system_instructions"
            assert words in str(error)


def test_values_are_checked_by_name() -> None:
    needed = {"company": {"required": True}}
    for values, words in (({}, "required"), ({"company": None}, "required")):
        with pytest.raises(InvalidInputError, match=words) as caught:
            PromptTemplate("{{ company }}", needed).render(values)
        assert caught.value.field == "variables.company"
    with pytest.raises(InvalidInputError, match="not declared") as caught:
        PromptTemplate("hi", needed).render({"company": "x", "compny": "y"})
    assert caught.value.field == "variables.compny"
    for value in (object(), b"bytes", float("nan"), {"a": {"b": {1, 2}}}, settings):
        assert refusal("{{ x }}", {"x": value}).field == "variables.x"


def test_a_declaration_that_makes_no_sense_is_named() -> None:
    for declared, field in (
        ({"_x": {}}, "variables._x"),
        ({"a b": {}}, "variables.a b"),
        ({"if": {}}, "variables.if"),
        ({"user": {}}, "variables.user"),
        ({"x": []}, "variables.x"),
        ({"x": {"defualt": 1}}, "variables.x"),
        ({"x": {"required": "yes"}}, "variables.x.required"),
        ({"x": {"description": 1}}, "variables.x.description"),
        ({"x": {"default": object()}}, "variables.x.default"),
        (["x"], "variables"),
    ):
        with case(declared), refused(field):
            PromptTemplate("hi", declared)  # type: ignore[arg-type]


def test_there_is_no_way_out() -> None:
    """A tag or filter that Django adds one day is not available until somebody has looked at it."""
    values = {"x": "text", "d": {"a": 1}, "n": 3, "l": [{"a": 1}]}
    named = ("system_instructions", *(f"variables.{name}" for name in values))
    for path in (
        "settings.SECRET_KEY", "request.user", "template.engine", "render_context", "dicts", "block.super",
        "x.__class__", "x.upper", "x.format", "d.clear", "d.popitem", "d.items.clear", "n.real", "n.numerator",
        "l.append", "l.sort", "l|random", "x|date:'Y'", "x|stringformat:'999999999d'", "_('x')", "x|default:_('x')",
        "agent.spec", "user.password", "user.groups", "forloop.counter.real",
    ):  # fmt: skip
        with case(path):
            assert refusal(f"{{{{ {path} }}}}", values).field in named
    for tag in (
        "include '/etc/passwd'", "extends 'admin/base.html'", "load static", "url 'admin:index'", "debug", "now 'Y'",
        "lorem", "csrf_token", "autoescape on %}{% endautoescape", "filter upper %}{% endfilter",
    ):  # fmt: skip
        with case(tag):
            assert refusal(f"{{% {tag} %}}", values).field in named
    assert not {"include", "extends", "load", "url", "debug", "now", "lorem"} & set(PROMPT_ENGINE_TAGS)
    assert not {"random", "date", "time", "timesince", "timeuntil", "stringformat", "safe"} & set(PROMPT_ENGINE_FILTERS)


NAMES = ["x", "d", "l", "n", "user", "agent", "settings", "request", "self", "forloop", "template", "os", "environ"]
ATTRIBUTES = [
    *["__class__", "__dict__", "__init__", "__globals__", "mro", "SECRET_KEY", "environ", "engine", "items", "format"],
    *["upper", "encode", "pop", "clear", "real", "0", "1", "a", "keys", "password", "objects", "META"],
]
paths = st.builds(
    lambda root, rest: ".".join([root, *rest]),
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(ATTRIBUTES), max_size=4),
)
arguments = st.one_of(paths, st.integers(0, 10**10).map(str), st.sampled_from(["'a'", "'9999999999'", "'__class__'"]))
expressions = st.builds(
    lambda path, used: path + "".join(f"|{name}" + (f":{arg}" if arg else "") for name, arg in used),
    paths,
    st.lists(st.tuples(st.sampled_from([*PROMPT_ENGINE_FILTERS, "random", "date"]), st.none() | arguments), max_size=4),
)
tags = st.builds(
    lambda tag, expression, body: f"{{% {tag.format(expression)} %}}{body}{{% end{tag.split()[0]} %}}",
    st.sampled_from(["if {}", "if {} > 3", "for x in {}", "for a, b in {}", "with y={}", "include {}", "spaceless"]),
    expressions,
    expressions.map(lambda found: f"{{{{ {found} }}}}"),
)
texts = st.lists(
    st.one_of(tags, expressions.map(lambda found: f"{{{{ {found} }}}}"), st.text(max_size=8)), max_size=6
).map("".join)


@given(texts)
@example("{{ settings.SECRET_KEY }}")
@example("{% for a, b in d.items %}{{ a }}{{ b }}{% endfor %}")
def test_no_text_reaches_the_process(text) -> None:
    """Whatever comes out was in the text or in the values; whatever goes wrong is an InvalidInputError."""
    os.environ["RAVI_TEST_CANARY"] = "canary-in-the-environment"
    values = {"x": "text", "d": {"a": 1, "l": [1]}, "l": [{"a": 1}, {"a": 2}], "n": 3}
    try:
        shown = render(text, values)
    except InvalidInputError as error:
        assert error.field == "system_instructions" or error.field.startswith("variables")
        shown = str(error)
    secrets = (settings.SECRET_KEY, "canary-in-the-environment")
    for secret in (*secrets, "<built-in", "<class '", "<bound", " object at 0x"):
        assert secret not in shown
    assert values == {"x": "text", "d": {"a": 1, "l": [1]}, "l": [{"a": 1}, {"a": 2}], "n": 3}


@given(st.text(alphabet="{}%#|.:'\"_ xifendforwith=0\n", max_size=60))
def test_nonsense_is_text_or_a_named_error(text) -> None:
    try:
        assert isinstance(render(text, {"x": "1"}), str)
    except InvalidInputError as error:
        assert error.field is not None


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in l %}{% for b in l %}{% for c in l %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in l %}{% for b in l %}{{ b }}{% endfor %}{% endfor %}",
        "{% for a in l %}{% for b in l %}" + "x" * 1000 + "{% endfor %}{% endfor %}",
        "".join(f"{{% with a{n}=a{n - 1}|add:a{n - 1} %}}" for n in range(1, 40)) + "{% endwith %}" * 39,
        "{% for a in l %}" + "x" * 50_000 + "{% endfor %}",
        "{{ x|ljust:'999999999' }}",
        "{{ x|center:n }}",
        "{{ n|floatformat:'999999999' }}",
        "{{ l|join:x }}",
        "{% for a in l %}{% for b in l %}{% if b > 3 %}{% endif %}{% endfor %}{% endfor %}",
    ],
)
def test_work_and_size_are_bounded(text) -> None:
    values = {"l": list(range(5000)), "x": "x" * 50_000, "n": 10**9, "a0": "y" * 1000}
    began = time.thread_time()
    error = refusal(text, values)
    assert time.thread_time() - began < 5
    assert error.field == "system_instructions"
    assert "too" in str(error)


def test_texts_and_values_have_a_largest_size() -> None:
    assert "at most 100,000" in str(refusal("x" * 100_001))
    assert refusal("{{ x }}{{ x }}", {"x": "y" * 60_000}).field == "system_instructions"
    assert refusal("hi", {"x": "y" * 300_000}).field == "variables"
    deep: Any = []
    for _ in range(250):  # Python and PostgreSQL would take it
        deep = [deep]
    assert refusal("{{ x }}", {"x": deep}).field == "variables.x"
    nested = "{% if x %}" * 5000 + "{% endif %}" * 5000
    assert refusal(nested, {"x": "1"}).field == "system_instructions"
    assert len(render("{{ x }}", {"x": "y" * 99_999})) == 99_999

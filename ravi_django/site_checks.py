"""`manage.py check`: the site's agents, tools, models, URLs and server. `checks` has the settings."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Warning, register
from django.templatetags.static import static
from django.urls import Resolver404, get_resolver, resolve

from ravi_django import access
from ravi_django.agents.react.approval import ApprovalGate
from ravi_django.agents.tools.approvers import approvers_of, refuse_owner
from ravi_django.calls.llm import pricing
from ravi_django.calls.llm.loading import LAST_TESTED
from ravi_django.conf import DEFAULTS, conf
from ravi_django.kernel import InvalidInputError, Risk, Tool, UnpricedModelError
from ravi_django.kernel.people import Addressees
from ravi_django.people import site_rules
from ravi_django.runs.catalog import agent_models, registry

MODEL_IDS = {"UnknownModelError": "ravi.I002", "MissingKeyError": "ravi.I003"}
_CHECK = ["check"]  # the command that prints notes: others, such as ravi_run, are not interrupted by them
# The doctor looks at the models and workers themselves.
NOTES = (*MODEL_IDS.values(), "ravi.I004", "ravi.I005", "ravi.W016")


@register("ravi")
def check_access_policy(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """A policy that cannot be loaded refuses everything."""
    try:
        is_default = type(access.policy()) is access.AccessPolicy
    except Exception as error:
        hint = 'ACCESS_POLICY = "mysite.access.Policy": a subclass of ravi_django.access.AccessPolicy.'
        return [Error(f"RAVI['ACCESS_POLICY'] is {conf.ACCESS_POLICY!r}: {error}.", hint=hint, id="ravi.E016")]
    known = registry.known_addresses()
    if is_default and known and all(registry.access_of(address) == "private" for address in known):
        text = "all agents are private: register(agent, access=…)"
        hint = 'Over REST only users with ravi.run_agent run them. access="authenticated" allows every user.'
        return [Info(text, hint=hint, id="ravi.I001")]
    return []


@register("ravi")
def check_agents_modules(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Python imports the package, and ignores a module of the same name without a word."""
    if conf.AGENTS_MODULE is None:
        return []
    paths = [Path(app.path, *str(conf.AGENTS_MODULE).split(".")) for app in apps.get_app_configs()]
    modules = [path for path in paths if path.with_suffix(".py").exists()]
    if DEFAULTS["AGENTS_MODULE"] != conf.AGENTS_MODULE and not (modules or any(path.is_dir() for path in paths)):
        text = f"RAVI['AGENTS_MODULE'] is {conf.AGENTS_MODULE!r}, and no installed app has a module of this name."
        return [Warning(text, hint="The name inside an app, such as 'agents'; None imports nothing.", id="ravi.W013")]
    both = [path for path in modules if (path / "__init__.py").exists()]
    hint = "Move its agents to a module of the package, for example {0}/helper.py."
    return [Warning(f"{path}.py is not imported: {path}/ is.", hint=hint.format(path), id="ravi.W009") for path in both]


@register("ravi")
def check_urls(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    has_urls = conf.PAGES and getattr(settings, "ROOT_URLCONF", None)
    if conf.ENGINE == "manual" or not has_urls or "ravi" in get_resolver().namespace_dict:
        return []
    text = f"{settings.ROOT_URLCONF} does not include ravi_django.urls: the chat, the pages and REST have no URL."
    hint = 'path("ravi/", include("ravi_django.urls")); for a site without them RAVI["PAGES"] = False.'
    return [Warning(text, hint=hint, id="ravi.W014")]


@register("ravi")
def check_hidden_tools(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Settings that ask owners to approve calls that they may not read: staff are asked instead."""
    problems: list[CheckMessage] = []
    for tool in registry.known_tools():
        try:
            for kind in ("approval", "uncertain") if approvers_of(tool) is None else ("uncertain",):
                for risk in Risk:
                    refuse_owner(tool, site_rules.addressees(kind, tool.name, risk.value))
        except InvalidInputError as error:
            hint = 'RAVI["ADDRESSEES"] names the owner for this tool: name "staff" or another address.'
            problems.append(Error(f"{error}.", hint=hint, id="ravi.E017"))
    return problems


@register("ravi")
def check_conflicts(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    hint = f"{registry.CONFLICT_FIX}."
    return [Error(f"{fault}. The first one is in use.", hint=hint, id="ravi.E038") for fault in registry.conflicts]


@register("ravi")
def check_litellm(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """It is released each day, and changes what it sends and what it makes of answers."""
    installed = metadata.version("litellm")
    release, tested = ([*map(int, re.findall(r"\d+", version)[:3])] for version in (installed, LAST_TESTED))
    text = f"litellm {installed} is installed; the last version that this release was tested with is {LAST_TESTED}."
    hint = f'pip install "litellm=={LAST_TESTED}".'
    return [Warning(text, hint=hint, id="ravi.W015")] if release > tested else []


@register("ravi")
def check_tools(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Tools that a model cannot understand, and calls that nobody can approve."""
    hint = "Write a docstring: what the tool does, and when to call it."
    problems: list[CheckMessage] = [
        Warning(f"The tool {tool.name} has no description: a model sees its name alone.", hint=hint, id="ravi.W011")
        for tool in registry.known_tools()
        if not tool.description.strip()
    ]
    hint = '@tool(approvers="staff"), approvers= of the agent, or RAVI["ADDRESSEES"] = {"approval": "staff"}.'
    for (owner, tool), risk in {(owner, tool): risk for owner, tool, risk, to in asked() if to is None}.items():
        text = f"{owner}: {tool} has {risk.value} risk and no approvers: each call is rejected."
        problems.append(Warning(text, hint=hint, id="ravi.W012"))
    return problems


def asked() -> Iterator[tuple[str, str, Risk, Addressees | None]]:
    """For each agent, tool and risk: who is asked for approval."""
    for owner, gate, tools in _gates():
        for tool in tools:
            for risk, to in gate.asked(tool):
                with suppress(InvalidInputError):  # another check reports it
                    yield owner, tool.name, risk, to or site_rules.addressees("approval", tool.name, risk.value)


def _gates() -> Iterator[tuple[str, ApprovalGate, list[Tool]]]:
    """By place: who asks for approvals, and the tools."""
    for address, agent in registry._agents.items():
        if isinstance(gate := getattr(agent, "approval", None), ApprovalGate):
            yield address, gate, list(getattr(agent, "tools", ()))
    yield "agents in the database that name no approvers", ApprovalGate(), list(registry._tools.values())


@register("ravi")
def check_models(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Of registered agents; the doctor sees those in the database too. Another process may have the key."""
    if sys.argv[1:2] != _CHECK or conf.ENGINE == "manual":  # tests call no model
        return []
    problems: list[CheckMessage] = []
    unpriced: list[str] = []
    for model, fault, agents in agent_models.used(agent_models.in_code()):
        if fault is None and pricing.unpriced(model):
            unpriced.append(f"{model.name} ({', '.join(sorted(agents))})")
        doubt = getattr(model, "doubt", str)()
        for text, id in ((fault, MODEL_IDS[fault.error] if fault else ""), (doubt, "ravi.I005")):
            if text:
                problems.append(Info(f"{text} ({', '.join(agents)})", id=id))
    if unpriced:
        text = f"Models without a price, which a budget in dollars refuses: {', '.join(unpriced)}."
        problems.append(Warning(text, hint=f"{UnpricedModelError.WAYS}.", id="ravi.W016"))
    return problems


@register("ravi")
def check_server(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    if settings.DEBUG or conf.ENGINE != "inline" or sys.argv[1:2] != _CHECK:
        return []
    text = "Under a server other than runserver the engine starts at the first request: runs and schedules wait for it."
    return [Info(text, hint="manage.py ravi_worker executes them from its start.", id="ravi.I004")]


@register("ravi")
def check_static_files(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Only `runserver` with DEBUG serves static files without configuration."""
    is_asgi = getattr(settings, "ASGI_APPLICATION", None) and not apps.is_installed("daphne")
    if conf.ENGINE == "manual" or (settings.DEBUG and (not is_asgi or sys.argv[1:2] == ["runserver"])):
        return []
    if settings.STATIC_ROOT or any("whitenoise" in name or "servestatic" in name for name in settings.MIDDLEWARE):
        return []
    address = urlsplit(static("ravi/ui.css"))
    if not conf.PAGES or address.netloc or _is_served(address.path):
        return []
    text = "Nothing serves the app's static files, but runserver: the pages have no styles, and the chat sends nothing."
    hint = 'STATIC_ROOT = BASE_DIR / "staticfiles" with manage.py collectstatic, and whitenoise or your web server.'
    return [Warning(text, hint=hint, id="ravi.W010")]


def _is_served(path: str) -> bool:
    """Whether the URLconf serves this file."""
    try:
        return resolve(path).func.__module__ in ("django.views.static", "django.contrib.staticfiles.views")
    except Resolver404:
        return False

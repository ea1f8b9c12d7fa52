"""The form of an agent in the database: a field for each part of its spec, with errors at the right field."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db import connections, router
from django.urls import reverse
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django import wing
from ravi_django.admin.agents.fields import (
    ApproversField,
    DescribedField,
    LinesField,
    ObjectField,
    VariablesField,
    code_area,
    declared,
    text_line,
)
from ravi_django.admin.agents.values import (
    addresses_in,
    agents_but,
    assemble,
    initial_of,
    listed_in,
    model_help,
    note_of,
    variables_help,
)
from ravi_django.agents.spec.spec import INFORMATION, PERSONAL_FEED, REACT, AgentSpec, validate_spec
from ravi_django.kernel import AgentId, InvalidInputError
from ravi_django.models import Agent
from ravi_django.models.names import word
from ravi_django.runs.catalog.prompts import PromptTemplate
from ravi_django.runs.catalog.registry import check_access, known_addresses, known_tools
from ravi_django.runs.catalog.specs import check_spec

FIELDSETS: list[Any] = [
    (None, {"fields": ["address", "kind", "name", "description", "access", "enabled", "oldest_version", "version"]}),
    (_("Model"), {"fields": ["model", "fallbacks"]}),
    (_("Instructions"), {"fields": ["system_instructions", "variables"]}),
    (
        _("Tools and sub-agents"),
        {
            "fields": [
                *("tool_names", "approval_required_risk", "approvers", "sub_agents", "initial_tool_choice"),
                *("client_tools", "public_signals"),
            ]
        },
    ),
    (
        _("News"),
        {
            "classes": ["collapse"],
            "fields": [
                "output_topic",
                "source_signal",
                "follow_topics",
                "preferences",
                "every_s",
                "items_per_generation",
            ],
        },
    ),
    (
        _("Conversation"),
        {"fields": ["welcome", "starter_prompts", "retention", ("window_messages", "window_tokens")]},
    ),
    (
        _("Limits of a run"),
        {
            "fields": [
                "max_iterations",
                ("budget_max_turns", "budget_max_tokens", "budget_max_cost_usd"),
                ("budget_deadline_s", "budget_max_agents"),
            ]
        },
    ),
    (
        _("Generation"),
        {
            "classes": ["collapse"],
            "fields": [
                ("options_temperature", "options_top_p", "options_max_tokens"),
                "options_reasoning_effort",
                "options_stop",
                "options_extra",
                "result_schema",
            ],
        },
    ),
]


def _text(label: Any, help_text: Any, **options: Any) -> forms.CharField:
    return forms.CharField(required=False, label=label, help_text=help_text, **{"widget": text_line(), **options})


def _whole(label: Any, help_text: Any = "") -> forms.IntegerField:
    return forms.IntegerField(required=False, label=label, help_text=help_text)


def _number(label: Any, help_text: Any = "") -> forms.FloatField:
    return forms.FloatField(required=False, label=label, help_text=help_text, widget=forms.NumberInput({"step": "any"}))


def _of_wings(*choices: tuple[str, Any]) -> list[tuple[str, Any]]:
    """The choices of a kind that the site has."""
    return [(kind, label) for kind, label in choices if wing.find("kinds", kind)]


class AgentForm(forms.ModelForm):  # type: ignore[type-arg]
    """`spec` is the checked AgentSpec of a valid form. A preview is never valid: it saves nothing."""

    previewing = False

    version = forms.IntegerField(required=False, widget=forms.HiddenInput)
    kind = forms.ChoiceField(
        required=False, initial=REACT, label=_("Kind"),
        choices=[
            (REACT, _("Assistant: answers messages and uses tools")),
            *_of_wings(
                (INFORMATION, _("Information: summarizes items from sources for its followers")),
                (PERSONAL_FEED, _("Personal feed: follows topics and keeps what matters to its user")),
            ),
        ],
    )  # fmt: skip
    model = _text(_("Model"), "", max_length=200)
    fallbacks = LinesField(
        label=_("Fallbacks"),
        rows=2,
        help_text=_("Models to try when the first one fails: one per line, in order."),
    )
    system_instructions = forms.CharField(
        required=False, strip=False, widget=code_area(14), label=_("text"),
        help_text=_(
            "The system prompt, as a Django template with the variables below: Hello {{ user.full_name }}. "
            "{% if tone %}Be {{ tone }}.{% endif %}"
        ),
    )  # fmt: skip
    variables = VariablesField(required=False, label=_("Variables"))
    tool_names = DescribedField(required=False, label=_("tools"))
    approval_required_risk = forms.ChoiceField(
        required=False, label=_("require approval for"),
        choices=[
            ("", _("high-risk and critical tools (default)")),
            ("safe", _("all tools")),
            ("high", _("high-risk and critical tools")),
        ],
        help_text=_(
            "Calls of these tools wait for approval. If neither the tool, this agent nor the site's "
            "settings name approvers, the call is rejected."
        ),
    )  # fmt: skip
    approvers = ApproversField(
        label=_("approvers"),
        help_text=_(
            "Who approves calls of tools that name no approvers in their code: staff, user:NAME, group:NAME or "
            "permission:app.codename; owner only for safe tools. Or JSON. A list escalates after the given "
            'seconds: [["group:finance", 14400], "group:directors"]. An object chooses by tool or risk, and * '
            'is for the rest: {"send_invoice": "group:finance", "critical": "group:directors", "*": "staff"}.'
        ),
    )
    client_tools = forms.TypedChoiceField(
        required=False, label=_("client tools"), coerce=lambda value: value == "True" or value, empty_value=None,
        choices=[("", _("No")), ("True", _("Yes")), ("high", _("Yes, and the user approves each call"))],
        help_text=_("A page or another client may bring tools, which it runs itself. Runs of this agent get them."),
    )  # fmt: skip
    sub_agents = DescribedField(
        required=False,
        label=_("sub-agents"),
        help_text=_(
            "Each becomes a tool handoff_&lt;key&gt; that gives the sub-agent a task and waits for its answer."
        ),
    )
    initial_tool_choice = _text(
        _("initial tool choice"),
        _("Tool choice of the first model call for a message: auto, none, required, or a tool's name. Empty: auto."),
    )
    public_signals = LinesField(
        label=_("Public signals"),
        rows=2,
        help_text=_("One name per line. The owner of a run may send these signals over REST."),
    )
    output_topic = _text(
        _("Output topic"),
        _("type/source, such as news/tech. Answers are published here when nobody asked for a reply."),
    )
    source_signal = _text(
        _("Source signal"),
        _("For an information agent: the signal that delivers an item. Empty: new_source_item."),
        max_length=200,
    )
    follow_topics = LinesField(
        label=_("Followed topics"),
        rows=3,
        help_text=_("For a personal feed: type/source, one per line. The agent follows them when it starts."),
    )
    preferences = _text(
        _("Preferences"),
        _(
            "Used when the run has none. Without a model, these words select items: cats, machine learning, "
            "not football."
        ),
        widget=forms.Textarea({"rows": 2}),
    )
    every_s = _whole(
        _("seconds between deliveries"),
        _("The minimum. Items in between arrive in one message. Empty: each item at once."),
    )
    items_per_generation = _whole(
        _("items per generation"), _("Then the run continues with an empty journal. Empty: 20.")
    )
    welcome = _text(_("welcome text"), _("Shown before the first message."), widget=forms.Textarea({"rows": 2}))
    starter_prompts = LinesField(label=_("Starter prompts"), help_text=_("Suggested first messages, one per line."))
    retention = forms.ChoiceField(
        label=_("memory"),
        choices=[
            ("permanent", _("kept with the conversation")),
            ("run", _("deleted when the run ends")),
            ("none", _("not stored")),
        ],
    )
    window_messages = _whole(_("newest messages"), _("How many of them the model gets. Empty: 100."))
    window_tokens = _whole(_("maximum tokens of the conversation"))
    max_iterations = forms.IntegerField(
        initial=10, label=_("maximum model calls"), help_text=_("Per message. The run fails if it needs more.")
    )
    budget_max_turns = _whole(_("maximum turns"), _("For the run and its sub-agents together."))
    budget_max_tokens = _whole(_("maximum tokens"))
    budget_max_cost_usd = _number(_("maximum US dollars"))
    budget_deadline_s = _number(_("maximum seconds"))
    budget_max_agents = _whole(_("maximum agents"))
    options_temperature = _number(_("temperature"))
    options_top_p = _number(_("top p"))
    options_max_tokens = _whole(_("output tokens"))
    options_reasoning_effort = _text(_("reasoning effort"), _("low, medium or high, if the provider supports it."))
    options_stop = LinesField(
        rows=2, label=_("stop sequences"), help_text=_("The model stops before these texts, one per line.")
    )
    options_extra = ObjectField(
        label=_("more options"),
        help_text=_("A JSON object, passed to the provider unchanged. Do not enter keys or passwords."),
    )
    result_schema = ObjectField(
        rows=6,
        label=_("result schema"),
        help_text=_("A JSON Schema that every answer must match. Empty: free text."),
    )

    class Meta:
        model = Agent
        fields = ["address", "name", "description", "access", "enabled", "oldest_version"]
        labels = {"address": _("address")}
        help_texts = {
            "address": _("type/key, such as support/orders. It identifies the agent and cannot be changed."),
            "access": _(
                "Who may run it: private (users with ravi.run_agent), staff, authenticated, or perm:app.codename."
            ),
            "enabled": _("A disabled agent accepts no new runs."),
        }
        widgets = {"description": forms.Textarea({"rows": 2})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        spec = self.instance.spec if self.instance.pk else {}
        self.old_spec = spec if isinstance(spec, dict) else {}
        if self.instance.pk:
            self.initial.update({**initial_of(self.old_spec), "version": self.instance.version})
        self.spec: AgentSpec | None = None
        self.text = ""  # the instructions as typed, valid or not
        self.valid = False  # also of a preview
        for field in self.fields.values():
            field.label = field.label and capfirst(field.label)
        self.fields["access"].required = self.fields["oldest_version"].required = False  # empty: private, as before
        self.fields["model"].help_text = model_help()
        self.fields["variables"].help_text = variables_help()
        self.tools = {tool.name: tool for tool in known_tools()}
        self.fields["tool_names"].offer(  # type: ignore[attr-defined]
            {name: note_of(tool) for name, tool in self.tools.items()}, listed_in(self.old_spec, "tool_names"),
            word("tool names"),
            gettext("No tools are registered. Register one with ravi_django.register_tool."),
        )  # fmt: skip
        self.agents = agents_but(self.instance)
        self.fields["sub_agents"].offer(  # type: ignore[attr-defined]
            self.agents, addresses_in(self.old_spec), word("sub agents"), gettext("There are no other agents yet.")
        )

    def is_valid(self) -> bool:
        self.valid = super().is_valid()
        return self.valid and not self.previewing

    def clean_address(self) -> str:
        """`type/key`. The address of an agent in code is taken, even before its row exists."""
        try:
            address = str(AgentId.parse(self.cleaned_data["address"].strip()))
        except InvalidInputError as error:
            raise forms.ValidationError(str(error)) from error
        if address in known_addresses() and not Agent.objects.filter(address=address).exists():
            raise forms.ValidationError(
                gettext("%(address)s is already registered in code. Choose another address."),
                params={"address": address},
            )
        return address

    def clean_access(self) -> str:
        try:
            return check_access(self.cleaned_data["access"].strip() or "private")
        except InvalidInputError as error:
            raise forms.ValidationError(str(error)) from error

    def clean_oldest_version(self) -> int:
        oldest: int | None = self.cleaned_data["oldest_version"]
        if oldest is not None and oldest > self.instance.version:
            raise forms.ValidationError(
                gettext("The newest version is %(number)s.") % {"number": self.instance.version}
            )
        return self.instance.oldest_version if oldest is None else oldest

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        self.text = data.get("system_instructions") or ""
        self._check_version(data)
        if not {"system_instructions", "variables"} & self.errors.keys():
            self._blaming(PromptTemplate, data["system_instructions"], declared(data["variables"]))
        if not self.errors:
            spec = assemble(data, self.old_spec)
            self._blaming(validate_spec, spec, self.tools, self.agents)
            if not self.errors:
                self.spec = self._blaming(check_spec, spec)
        return data

    def _blaming(self, check: Any, *args: Any) -> Any:
        try:
            return check(*args)
        except InvalidInputError as error:
            self.add_error(self._field_of(error.field or ""), str(error))
            return None

    def _field_of(self, spec_path: str) -> str | None:
        """The form's field for a place in the spec, such as `budget.max_tokens` or `tool_names.1`."""
        parts = spec_path.split(".")
        names = ("_".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((name for name in names if name in self.fields), None)

    def _check_version(self, data: dict[str, Any]) -> None:
        """Show once that another person has saved since this form was shown. The row stays locked until the save."""
        if not self.instance.pk or self.previewing:
            return
        rows = Agent.objects.filter(pk=self.instance.pk)
        if connections[router.db_for_write(Agent)].in_atomic_block:
            rows = rows.select_for_update()
        current = rows.values_list("version", flat=True).get()
        if data.get("version") == current:
            return
        self.data = self.data.copy()  # type: ignore[attr-defined]
        self.data[self.add_prefix("version")] = str(current)  # type: ignore[index]
        link = reverse("admin:ravi_agent_version", args=[self.instance.pk, current])
        message = gettext(
            'Somebody saved <a href="{}">version {}</a> while you were editing. Your changes are all below, '
            "but not saved. Look at that version, then save again to replace it."
        )
        self.add_error(None, format_html(message, link, current))

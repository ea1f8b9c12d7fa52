"""The form of a source: what its kind wants is checked, and whom it runs as is not anybody's choice."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ravi_django.admin.agents.fields import AgentField
from ravi_django.admin.base import tenant_for
from ravi_django.admin.delegations import UserNameField
from ravi_django.kernel import ForbiddenError
from ravi_django.kernel.visible import visible
from ravi_django.models import Source
from ravi_django.runtime.schedules import schedules
from ravi_django.runtime.sources import adding
from ravi_django.users import has

FIELDS = ["name", "kind", "location", "agent", "signal", "every_s", "options", "enabled", "owner", "tenant"]
LOCATION = _(
    "Feed: its address. Model: app.Model. Drop: a directory. Adapter: its registered name. Webhook: empty; its address "
    "and secret are made here."
)
OPTIONS = _(
    'JSON. All: {"edits": true} tells of edits too, {"metadata": {…}} goes to the runs. Model: {"fields": [names]}. '
    'Webhook and drop: {"id", "title", "text", "url": paths}. No keys or passwords.'
)


class SourceForm(forms.ModelForm):  # type: ignore[type-arg]
    """`by` is who edits. `owner` and `tenant` are there for superusers alone: a source runs as its owner."""

    by: Any  # who fills it in

    agent = AgentField(label=_("Agent"), help_text=_("The agent that gets what is new."))
    owner = UserNameField(label=_("Owner"), required=False, help_text=_("Whose runs it makes; empty: the system's"))

    class Meta:
        model = Source
        fields = FIELDS
        labels = {"every_s": _("Seconds between polls")}
        help_texts = {"location": LOCATION, "options": OPTIONS, "every_s": _("Of a feed at least 60.")}
        widgets = {
            "location": forms.TextInput({"spellcheck": "false"}),
            "options": forms.Textarea({"rows": 6, "class": "ravi-code", "spellcheck": "false"}),
        }

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        if not has(self.by, "is_superuser"):  # fields that are declared here are there whatever the admin lists
            self.fields.pop("owner", None)
            self.fields.pop("tenant", None)
        self._written = adding.written(self.instance.options)
        if isinstance(self.instance.options, dict):
            self.initial["options"] = adding.typed(self.instance.options)
        if "options" in self.fields:
            self.fields["options"].show_hidden_initial = False  # what it was is what the row says
        if "agent" in self.fields:
            self.fields["agent"].offer(self.by, self.instance.agent)  # type: ignore[attr-defined]
        if "owner" in self.fields:
            self.initial.setdefault("owner", self.by.get_username())
            if self.instance.pk and not self.instance._state.adding:
                self.initial["owner"] = self.instance.owner.get_username() if self.instance.owner else None

    def clean_options(self) -> dict[str, Any]:
        """What is written here, like what an adapter remembers, is neither shown nor typed."""
        given = self.cleaned_data["options"] or {}
        if not isinstance(given, dict):
            raise forms.ValidationError(gettext('A JSON object like {"edits": true}.'))
        return {**adding.typed(given), **self._written}

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]
        if self.instance._state.adding and "owner" not in self.fields:
            self.instance.owner = self.by
            self.instance.tenant = tenant_for(self.by)
        if self.errors:
            return
        for field, fault in adding.faults_of(self.instance):
            self.add_error(field if field in self.fields else None, fault)
        if not self.errors and {"agent", "owner"}.intersection(self.changed_data):
            try:
                schedules.check_owner(self.instance)
            except ForbiddenError as error:
                self.add_error("agent", visible(str(error)))

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext, gettext_lazy as _

from ravi_django.kernel.identity import AgentId
from ravi_django.models.base import user_key


class AgentManager(models.Manager["Agent"]):
    def get_by_natural_key(self, address: str) -> "Agent":
        return self.get(address=address)


class AgentVersionManager(models.Manager["AgentVersion"]):
    def get_by_natural_key(self, address: str, number: int) -> "AgentVersion":
        return self.get(agent__address=address, number=number)


class Agent(models.Model):
    """An address with its agent: registered by code, or a spec that is edited in the admin."""

    class Source(models.TextChoices):
        CODE = "code"
        ADMIN = "admin"

    address = models.CharField(max_length=302, unique=True, help_text=_("type/key"))
    name = models.CharField(max_length=200, blank=True)
    description = models.TextField(blank=True)
    source = models.CharField(max_length=10, choices=Source.choices, default=Source.CODE)
    spec = models.JSONField(default=dict, blank=True)
    version = models.IntegerField(
        default=1, db_default=1, help_text=_("For agents made in the admin: increases with every change")
    )
    oldest_version = models.PositiveIntegerField(
        _("oldest version"),
        default=1,
        db_default=1,
        help_text=_("Runs of older versions cannot be retried or forked. To withdraw a version, enter a later one."),
    )
    enabled = models.BooleanField(default=True)
    access = models.CharField(
        max_length=200, default="private", db_default="private",
        help_text=_("For agents made in the admin: private, staff, authenticated or perm:app.codename"),
    )  # fmt: skip
    owner = user_key(help_text="Of a spec edited in the admin: the user who made it, and may emit to its output topic")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = AgentManager()

    class Meta:
        ordering = ["address"]
        permissions = [("run_agent", "Can run every agent")]

    def __str__(self) -> str:
        return self.address

    def natural_key(self) -> tuple[str]:
        return (self.address,)

    @property
    def agent_id(self) -> AgentId:
        return AgentId.parse(self.address)


class AgentVersion(models.Model):
    """A version of a spec, for the runs that were created with it. Never changed."""

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="versions", db_index=False)
    number = models.IntegerField()
    spec = models.JSONField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    created_by = user_key()

    objects = AgentVersionManager()

    class Meta:
        ordering = ["agent", "-number"]
        constraints = [models.UniqueConstraint(fields=["agent", "number"], name="ravi_agent_version_once")]

    def __str__(self) -> str:
        return gettext("version %(number)s") % {"number": self.number}

    def natural_key(self) -> tuple[str, int]:
        return self.agent.address, self.number

    natural_key.dependencies = ["ravi.agent"]  # type: ignore[attr-defined]

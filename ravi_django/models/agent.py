from django.db import models

from ravi_django.kernel.identity import AgentId


class Agent(models.Model):
    """An address and what answers there: made known by code, or a spec edited in the admin."""

    class Source(models.TextChoices):
        CODE = "code"
        ADMIN = "admin"

    address = models.CharField(max_length=302, unique=True, help_text="type/key")
    name = models.CharField(max_length=200, blank=True)
    description = models.TextField(blank=True)
    source = models.CharField(max_length=10, choices=Source.choices, default=Source.CODE)
    spec = models.JSONField(default=dict, blank=True)
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["address"]

    def __str__(self) -> str:
        return self.address

    @property
    def agent_id(self) -> AgentId:
        return AgentId.parse(self.address)

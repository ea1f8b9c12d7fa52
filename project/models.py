from django.conf import settings
from django.db import models


class Invoice(models.Model):
    """An invoice that the demo agent sent: the side effect that must happen once, and after a person's approval."""

    customer = models.CharField(max_length=200)
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    idempotency_key = models.CharField(max_length=100)  # of the tool call that sent it
    sent_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-sent_at"]

    def __str__(self) -> str:
        return f"{self.amount} to {self.customer}"


class FeedPreferences(models.Model):
    """What a user has saved on the feed page: their reader goes by it, now and after it has ended."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    text = models.TextField(blank=True)

    class Meta:
        verbose_name_plural = "feed preferences"

    def __str__(self) -> str:
        return self.text

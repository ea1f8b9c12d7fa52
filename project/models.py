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

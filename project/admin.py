from django.contrib import admin
from django.http import HttpRequest

from project.models import Invoice


@admin.register(Invoice)
class InvoiceAdmin(admin.ModelAdmin):
    """Read-only: invoices are sent by the agent alone."""

    list_display = ["customer", "amount", "sent_at"]
    search_fields = ["customer"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Invoice | None = None) -> bool:
        return False

"""What the transactional tool writes: a table of the site beside the app's own."""

from django.db import models


class Row(models.Model):
    """One transactional effect. Nothing but the tool's promise keeps it from being there twice."""

    run = models.UUIDField()
    number = models.IntegerField()
    key = models.CharField(max_length=64)

    class Meta:
        app_label = "lab"
        indexes = [models.Index(fields=["run"], name="lab_row_run")]

    def __str__(self) -> str:
        return f"{self.run} {self.number}"

"""What people think of answers."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ravi_django.models.run import Run


class Feedback(models.Model):
    """One person's opinion of one run; the last one counts."""

    class Score(models.IntegerChoices):
        GOOD = 1, _("good")
        BAD = -1, _("bad")

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="feedback", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    score = models.SmallIntegerField(choices=Score.choices)
    text = models.CharField(max_length=2000, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "feedback"
        constraints = [
            models.UniqueConstraint(fields=["run", "user"], name="ravi_feedback_once"),
            models.CheckConstraint(condition=Q(score__in=[1, -1]), name="ravi_feedback_score"),
        ]

    def __str__(self) -> str:
        return str(self.get_score_display())

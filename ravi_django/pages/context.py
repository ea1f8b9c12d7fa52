"""The context of a request on its page: the run's input, the conversation, the cost so far, the outcome."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.db.models import Count, Q, Subquery, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce, Left
from django.utils.translation import ngettext

from ravi_django.kernel.visible import visible
from ravi_django.models import HumanRequest, InboxMessage, Run, Turn
from ravi_django.pages import formats
from ravi_django.pages.texts import answered_by, decision_of


def cost_of(run: Run) -> dict[str, str]:
    """The cost so far, of the run and of its tree."""
    tree = Run.objects.filter(Q(id=run.tree_id) | Q(root_id=run.tree_id))
    unknown = Count("id", filter=Q(cost_unknown=True))
    total = tree.order_by().aggregate(runs=Count("id"), cost=Sum("cost"), unknown=unknown)
    of_tree = formats.money(total["cost"] or Decimal(0), unknown=bool(total["unknown"]))
    text = ngettext("%(cost)s, %(count)s run", "%(cost)s, %(count)s runs", total["runs"])
    return {
        "run": formats.money(run.cost, unknown=run.cost_unknown),
        "tree": text % {"cost": of_tree, "count": total["runs"]} if total["runs"] > 1 else "",
    }


def input_of(run: Run, limit: int = formats.CLIP) -> list[dict[str, Any]]:
    """The message that the run's tree began with, as blocks, each cut at `limit` characters."""
    first = InboxMessage.objects.filter(run=run.tree_id).order_by("id")
    content = first.values_list("body__payload__message__content", flat=True).first()
    return formats.blocks(content, limit) if content else []


def first_message_text(run: Any) -> Subquery:
    """To annotate rows of a list: the beginning of the text that a run began with. `run` refers to the run's id."""
    texts = [KT(f"body__payload__message__content__{index}__text") for index in (0, 1)]  # 0 may be about a page
    first = InboxMessage.objects.filter(run=run).order_by("id").annotate(words=Left(Coalesce(*texts), formats.LINE + 1))
    return Subquery(first.values("words")[:1])


def turns_of(row: HumanRequest, most: int, limit: int = formats.CLIP) -> list[tuple[Turn, list[dict[str, Any]]]]:
    """The last turns of the conversation, each block cut at `limit` characters."""
    last = Turn.objects.filter(session_id=row.run.session_id).select_related("entry").order_by("-position")[:most]
    return [(turn, formats.blocks(turn.blocks, limit)) for turn in reversed(last)]


def questions_of(row: HumanRequest) -> list[tuple[str, str]]:
    questions = row.about.get("questions")
    if not isinstance(questions, dict):
        return []
    return [(visible(str(key)), visible(str(text))) for key, text in questions.items()]


def outcome_of(row: HumanRequest) -> dict[str, Any] | None:
    """The outcome; None for a pending request."""
    if row.status == HumanRequest.Status.PENDING:
        return None
    answer = row.answer if isinstance(row.answer, dict) else {}
    values = answer.get("values") or {}
    return {
        "action": decision_of(row),
        "by": answered_by(row),
        "instead_of": visible(str(answer.get("instead_of") or "")),
        "text": visible(str(answer.get("text") or "")),
        "values": [(visible(str(key)), visible(str(value))) for key, value in values.items()],
        "arguments": answer.get("arguments") if answer.get("action") in ("edit", "approve") else None,
        "result": formats.pretty(answer.get("result"), None),
        "reason": visible(str(answer.get("reason") or "")),
        "sticky": answer.get("sticky") is True,
    }

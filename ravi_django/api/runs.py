"""Runs: submit, list, read, cancel, retry, fork, signal; their journal and their tree."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from django.db.models import Q
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.response import Response

from ravi_django import access
from ravi_django.api.base import ApiViewSet
from ravi_django.api.filters import RunFilters
from ravi_django.api.openapi import documented
from ravi_django.engine.journal.entries import internalize, sizes_outside
from ravi_django.kernel import AgentId
from ravi_django.models import BudgetAccount, Feedback, Run
from ravi_django.pages.run_rights import RunRights
from ravi_django.people.records import log_entry, rate
from ravi_django.people.signal_answers import send as send_signal
from ravi_django.runs.budgets import accounts
from ravi_django.runs.lifecycle.endings import cancel_for
from ravi_django.runs.lifecycle.fork import fork_once
from ravi_django.runs.lifecycle.retry import retry
from ravi_django.services import shapes
from ravi_django.services.exchanges import submit
from ravi_django.services.shapes import RunRowSerializer, UsageSerializer


class CountersSerializer(serializers.Serializer[Any]):
    """The columns of an account that begin with the field's name, such as `spent_tokens`."""

    tokens = serializers.IntegerField()
    cost = serializers.FloatField(help_text="US dollars, the known part")
    turns = serializers.IntegerField(help_text="Model calls")

    def to_representation(self, account: BudgetAccount) -> dict[str, Any]:
        row = {name: getattr(account, f"{self.field_name}_{name}") for name in ("tokens", "cost", "turns")}
        return super().to_representation(row)


class BudgetLimitsSerializer(serializers.Serializer[Any]):
    max_tokens = serializers.IntegerField(allow_null=True, help_text="Null: no limit")
    max_cost_usd = serializers.FloatField(source="max_cost", allow_null=True)
    max_turns = serializers.IntegerField(allow_null=True, help_text="Model calls")


class BudgetAccountSerializer(serializers.Serializer[Any]):
    limits = BudgetLimitsSerializer(source="*")
    spent = CountersSerializer(source="*")
    reserved = CountersSerializer(source="*", help_text="By open model calls")


class TreeTotalSerializer(UsageSerializer):
    cost_known = serializers.FloatField(source="cost", help_text="The known part of it")


class TreeSummarySerializer(serializers.Serializer[Any]):
    runs = serializers.IntegerField()
    live = serializers.IntegerField(help_text="Those that have not ended")
    usage = TreeTotalSerializer(source="*")
    budget = BudgetAccountSerializer(allow_null=True, help_text="Null for a tree without a budget")


class RunTreeSerializer(RunRowSerializer):
    children = serializers.ListField(child=serializers.DictField(), help_text="Runs like this one, oldest first")
    tree = TreeSummarySerializer(required=False, help_text="Of the whole tree; only at its root")

    def to_representation(self, root: Any) -> dict[str, Any]:
        """Iterative, so that the depth has no limit."""
        rows = RunRowSerializer(root.members, many=True).data
        nodes = {row["id"]: {**row, "children": []} for row in rows}
        for row in nodes.values():
            if row["parent"] in nodes:
                nodes[row["parent"]]["children"].append(row)
        whole = SimpleNamespace(**asdict(accounts.TreeUsage.of(root.members)), budget=accounts.tree_account(root.id))
        return {**nodes[str(root.id)], "tree": TreeSummarySerializer(whole).data}


def tree_of(runs: Any, id: UUID) -> Run:
    """The root, with all of its tree as `members`, oldest first: one query from the root, two from a child."""
    readable = RunRowSerializer.read(runs.order_by("id"))
    rows = {row.id: row for row in readable.filter(Q(id=id) | Q(root_id=id))}
    if id in rows and rows[id].tree_id != id:
        id = rows[id].tree_id
        rows = {row.id: row for row in readable.filter(Q(id=id) | Q(root_id=id))}
    if id not in rows:
        raise NotFound(f"there is no run {id} of yours")
    root: Run = rows[id]
    root.members = list(rows.values())  # type: ignore[attr-defined]
    return root


class RunViewSet(ApiViewSet):
    queryset = Run.objects.all()
    serializer_class = shapes.RunSerializer
    filterset_class = RunFilters
    limit = "submit"

    @documented("runs_list", ok={200: shapes.RunSerializer(many=True)}, errors=[400, 403])
    def list(self, request: Any) -> Response:
        """The user's runs, newest first, each with the first 1,000 characters of its output."""
        self.serializer_class = shapes.RunRowSerializer
        return self.page(shapes.RunRowSerializer.read(self.filter_queryset(self.get_queryset())))

    @documented(
        "runs_create",
        request=shapes.RunRequestSerializer,
        ok={201: shapes.RunSerializer, 200: shapes.RunSerializer},
        errors=[404, 409],
    )
    def create(self, request: Any) -> Response:
        """Start a run.

        201 with the run; 200 with the first run if the idempotency key was used before with the same body, 409 if it
        was used with another one. Without a session a new one is created, as for a new name.
        """
        return start(request.user, **self.validated(shapes.RunRequestSerializer))

    @documented("runs_read", ok={200: shapes.RunDetailSerializer}, errors=[404])
    def retrieve(self, request: Any, id: UUID) -> Response:
        """One run."""
        self.queryset = shapes.RunDetailSerializer.read(self.queryset)
        return Response(shapes.RunDetailSerializer(self.get_object()).data)

    @documented("runs_journal", ok={200: shapes.EntrySerializer(many=True)}, errors=[400, 403, 404])
    @action(
        detail=True,
        serializer_class=shapes.EntrySerializer,
        filterset_class=None,
        ordering="seq",
        weighs=("request", "result"),
    )
    def journal(self, request: Any, id: UUID) -> Response:
        """The run's journal, in order. Its owner does not see arguments and results of tools that are visible only to
        staff."""
        run = self.get_object()
        access.check_journal(request.user, run)
        return self.page(run.journal.all(), prepare=internalize, sizes=sizes_outside)

    @documented("runs_tree", ok={200: RunTreeSerializer}, errors=[404])
    @action(detail=True)
    def tree(self, request: Any, id: UUID) -> Response:
        """The whole tree of the run.

        Its root, with nested children, each with the first 1,000 characters of its output. `tree` has the usage of all
        runs, and their budget.
        """
        return Response(RunTreeSerializer(tree_of(self.get_queryset(), id)).data)

    @documented("runs_cancel", request=shapes.CancelSerializer, ok={202: shapes.RunSerializer}, errors=[404, 409])
    @action(detail=True, methods=["post"], limit="")
    def cancel(self, request: Any, id: UUID) -> Response:
        """Request the run's cancellation.

        A waiting run ends at once, a working one at the next heartbeat of its worker; 409 if it has ended.
        """
        body = self.validated(shapes.CancelSerializer)
        run = self.get_object()
        cancel_for(request.user, run.id, body.get("reason", ""))
        run.refresh_from_db()
        return self.response_of(run, 202)

    @documented("runs_retry", request=shapes.EmptySerializer, ok={202: shapes.RunSerializer}, errors=[404, 409])
    @action(detail=True, methods=["post"])
    def retry(self, request: Any, id: UUID) -> Response:
        """Continue a failed or blocked run.

        Its journal stays; the failed call is made again. 409 in any other state, for a failed child, after the run's
        deadline, and if its journal was pruned or its owner deleted.
        """
        self.validated(shapes.EmptySerializer)
        run = self.get_object()
        access.continue_run(request.user, run)
        return self.response_of(retry(run.id), 202)

    @documented(
        "runs_fork",
        request=shapes.ForkSerializer,
        ok={201: shapes.RunSerializer, 200: shapes.RunSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"], limit="fork")
    def fork(self, request: Any, id: UUID) -> Response:
        """Start a new run, in a new session, with a copy of this run's journal up to an entry. With `input` in place of
        `after_seq` it begins before the first step, and answers that message instead.

        409 if the journal was pruned, the run's owner deleted, or `input` is for a run that continued as new. 200 with
        the first fork if the idempotency key was used for this run before with the same body, 409 if it was used with
        another one.
        """
        source = self.get_object()
        body = self.validated(shapes.ForkSerializer)
        access.find(request.user, source.agent, None if source.parent_id else source.session_id)
        run, created = fork_once(source.id, user=request.user, **body)
        return self.response_of(run, 201 if created else 200)

    @documented("runs_feedback_read", ok={200: shapes.OpinionSerializer}, errors=[404])
    @action(detail=True, limit="signals")
    def feedback(self, request: Any, id: UUID) -> Response:
        """What the user thinks of the run."""
        row = Feedback.objects.filter(run=self.get_object(), user=request.user).first()
        return Response({"score": row and row.score, "text": row.text if row else ""})

    @documented("runs_feedback", request=shapes.FeedbackSerializer, ok={200: shapes.OpinionSerializer}, errors=[404])
    @feedback.mapping.put  # type: ignore[untyped-decorator]
    def rate(self, request: Any, id: UUID) -> Response:
        """Say what the user thinks of the run. A later score and text replace those before."""
        run = self.get_object()
        feedback = {"text": "", **self.validated(shapes.FeedbackSerializer)}
        rate(run, request.user, **feedback)
        return Response(feedback)

    @documented("runs_signal", request=shapes.SignalSerializer, ok={202: shapes.RunSerializer}, errors=[404, 409])
    @action(detail=True, methods=["post"], limit="signals")
    def signals(self, request: Any, id: UUID) -> Response:
        """Send the run a signal, which its agent waits for by name, now or later.

        403 for a name that is not among the agent's `public_signals`, except for users with `ravi.signal_run`. With the
        name of a question of the run (`human_reply:…`) the payload is an answer to it, a text or `{"action", "text"}`:
        403 for users who may not answer, 409 if it was answered before. 409 if the run has ended. A repeated
        idempotency key sends nothing; 409 if the key was used for this run before with another body.
        """
        run = self.get_object()
        send_signal(run, by=request.user, **self.validated(shapes.SignalSerializer))
        return self.response_of(self.get_object(), 202)


class OperatedRunViewSet(RunViewSet):
    """The actions of the run page for staff with `ravi.change_run`. Each is in the run's history in the admin."""

    limit = ""

    def get_object(self) -> Run:
        rights = RunRights(self.request.user)
        run: Run | None = rights.runs().filter(id=self.kwargs["id"]).first()
        if run is None or not rights.changes(run):
            raise NotFound(f"there is no run {self.kwargs['id']} that you may change")
        return run

    def response_of(self, row: Run, status: int = 200) -> Response:
        log_entry(self.get_object(), self.request.user, f"{self.action.capitalize()} on the run page.")
        return super().response_of(row, status)


def start(user: Any, *, agent: AgentId, **options: Any) -> Response:
    """Submit a run and answer with it."""
    run, created = submit(user, agent, options.pop("input"), **options)
    return Response(shapes.RunSerializer(run).data, status=201 if created else 200)

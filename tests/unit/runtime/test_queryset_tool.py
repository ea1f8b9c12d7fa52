"""Reading the site's tables: what is declared, for whoever may view it, and nothing else."""

import json
from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import DatabaseError
from django.db.models import QuerySet

from ravi_django.kernel import Effect, Risk
from ravi_django.models import Blob, Run
from tests.support.cases import case
from tests.support.runs import code, drive, make_run, take_over
from tests.support.tool_calls import calling
from tests.support.world import QuerysetTool

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def viewer():
    user = User.objects.create_user("viewer", password="secret")
    user.user_permissions.add(*Permission.objects.filter(codename__in=["view_user", "view_group", "view_permission"]))
    return user


@pytest.fixture
def groups():
    return [Group.objects.create(name=name) for name in ("red", "green", "blue", "Bluish")]


def users(**options):
    options = {"fields": ["username"], "filters": ["username__in", "is_active", "date_joined__gte"], **options}
    return QuerysetTool(User, **options)


def answer(reader, viewer, **arguments):
    code(calling(reader.name, **arguments), tools=[reader])
    return drive(make_run(owner=viewer)).output


def rows(reader, viewer, **arguments):
    said = answer(reader, viewer, **arguments)
    assert said.startswith("ok: "), said
    return json.loads(said.removeprefix("ok: "))["rows"]


def names(reader, viewer, **arguments):
    return [row["name"] for row in rows(reader, viewer, **arguments)]


def test_it_is_safe_and_named_for_its_model():
    reader = users()
    assert (reader.name, reader.risk, reader.promised_effect) == ("read_user", Risk.SAFE, Effect.IDEMPOTENT)
    assert reader.permission == "auth.view_user"
    names = ["username__in", "is_active", "date_joined__gte", "limit", "offset"]
    assert list(reader.parameters["properties"]) == names
    assert "required" not in reader.parameters


def test_filters_search_order_and_page(viewer, groups):
    filters = ["name", "name__startswith", "id__in", "name__exact"]
    reader = QuerysetTool(Group, fields=["name"], filters=filters, search=["name"], ordering=["name"], limit=3)
    assert names(reader, viewer) == ["red", "green", "blue"]
    assert names(reader, viewer, name="red") == ["red"]
    assert names(reader, viewer, name__exact="blue") == ["blue"]
    assert names(reader, viewer, search="BLU", order_by="-name") in (["blue", "Bluish"], ["Bluish", "blue"])
    assert names(reader, viewer, id__in=[groups[1].id, groups[2].id]) == ["green", "blue"]
    assert names(reader, viewer, limit=2, offset=1) == ["green", "blue"]
    said = json.loads(answer(reader, viewer, limit=3).removeprefix("ok: "))
    assert said["more"] is True
    assert json.loads(answer(reader, viewer, offset=1).removeprefix("ok: "))["more"] is False


def test_a_declared_path_over_foreign_keys_is_followed(viewer):
    reader = QuerysetTool(
        Permission,
        fields=["codename", "content_type__app_label"],
        filters=["content_type__app_label", "content_type", "codename"],
    )
    about = ContentType.objects.get_for_model(User)
    found = rows(reader, viewer, content_type__app_label="auth", codename="view_user")
    assert found == [{"codename": "view_user", "content_type__app_label": "auth"}]
    assert len(rows(reader, viewer, content_type=about.id)) == 4


def test_times_are_told_as_text_and_understood_without_a_zone(viewer):
    User.objects.filter(id=viewer.id).update(date_joined=datetime(2026, 1, 2, tzinfo=UTC))
    reader = users(fields=["date_joined"])
    assert rows(reader, viewer, date_joined__gte="2026-01-01T00:00:00") == [{"date_joined": "2026-01-02T00:00:00Z"}]
    assert rows(reader, viewer, date_joined__gte="2026-02-01T00:00:00") == []


def test_only_an_owner_who_may_view_reads(viewer):
    stranger = User.objects.create_user("stranger")
    inactive = User.objects.create_user("inactive", is_active=False)
    inactive.user_permissions.set(viewer.user_permissions.all())
    refusal = "error: not permitted: read_user needs the permission auth.view_user"
    for owner in (None, stranger, inactive):
        assert answer(users(), owner) == f"{refusal}, which the run's owner does not have", owner
    unguarded = users()
    unguarded.permission = None  # whoever calls it without the runtime gets no further
    assert answer(unguarded, stranger) == refusal


def test_a_queryset_narrows_the_rows_to_the_owners(viewer):
    User.objects.create_user("other")
    reader = users(queryset=lambda user: User.objects.filter(id=user.id))
    assert rows(reader, viewer) == [{"username": "viewer"}]
    assert rows(reader, viewer, username__in=["other"]) == []


def test_nothing_else_can_be_asked_for_and_the_argument_is_named(viewer):
    for arguments, words in (
        ({"password__startswith": "pbkdf2"}, "unknown argument 'password__startswith'"),
        ({"username__startswith": "v"}, "unknown argument 'username__startswith'"),
        ({"username": "v"}, "unknown argument 'username'"),
        ({"groups__name": "x"}, "unknown argument 'groups__name'"),
        ({"order_by": "password"}, "argument 'order_by'"),
        ({"order_by": "-password"}, "argument 'order_by'"),
        ({"order_by": "?"}, "argument 'order_by'"),
        ({"order_by": "username__length"}, "argument 'order_by'"),
        ({"limit": 51}, "argument 'limit'"),
        ({"limit": 0}, "argument 'limit'"),
        ({"offset": -1}, "argument 'offset'"),
        ({"offset": 10**9}, "argument 'offset'"),
        ({"is_active": "perhaps"}, "argument 'is_active'"),
        ({"date_joined__gte": "soon"}, "argument 'date_joined__gte'"),
        ({"username__in": ["x"] * 101}, "argument 'username__in'"),
        ({"search": "x" * 201}, "argument 'search'"),
        ({"fields": ["password"]}, "unknown argument 'fields'"),
        ({"queryset": "x"}, "unknown argument 'queryset'"),
    ):
        with case(arguments):
            said = answer(users(ordering=["username"], search=["username"]), viewer, **arguments)
            assert said.startswith("error: ")
            assert words in said
            assert "password__" not in said or "password__startswith" in words


def test_what_the_database_says_or_a_queryset_that_fails_is_not_told(viewer, monkeypatch):
    def fail(*args, **kwargs):
        raise DatabaseError("column auth_user.password is out of sorts")

    refusal = "error: users cannot be read with these arguments"
    for wrong in (lambda user: None, lambda user: Group.objects.all(), lambda user: 1 / 0, lambda user: []):
        assert answer(users(queryset=wrong), viewer) == refusal
    assert rows(users(), viewer) == [{"username": "viewer"}], "the declared fields alone"
    monkeypatch.setattr(QuerySet, "values", fail)
    assert answer(users(), viewer) == refusal


def test_what_cannot_be_declared_is_named():
    for model, options, words in (
        (User, {"fields": []}, "fields names at least one"),
        (User, {"fields": "username"}, "fields is a list of names"),
        (User, {"fields": ["nickname"]}, "fields has 'nickname', but User has no field 'nickname'"),
        (User, {"fields": ["groups"]}, "fields has 'groups'"),
        (User, {"fields": ["username__length"]}, "fields has 'username__length'"),
        (User, {"fields": ["-username"]}, "fields has '-username'"),
        (Blob, {"fields": ["body"]}, "bytes cannot be returned"),
        (User, {"fields": ["id"], "filters": ["groups__name"]}, "filters has 'groups__name'"),
        (User, {"fields": ["id"], "filters": ["username__regex"]}, "filters has 'username__regex'"),
        (User, {"fields": ["id"], "filters": ["user_permissions"]}, "filters has 'user_permissions'"),
        (User, {"fields": ["id"], "search": ["is_active"]}, "search has 'is_active', which is no text"),
        (User, {"fields": ["id"], "ordering": ["logentry"]}, "ordering has 'logentry'"),
        (User, {"fields": ["id"], "limit": 0}, "limit is"),
        (User(), {"fields": ["id"]}, "takes a model class"),
    ):
        with case(options), pytest.raises(ValueError) as refused:
            QuerysetTool(model, **options)
        assert words in str(refused.value)


def test_each_kind_of_field_has_its_type(viewer):
    filters = [
        "status", "id", "depth__lt", "created_at__date", "parent", "owner", "output__isnull", "created_at__year",
    ]  # fmt: skip
    reader = QuerysetTool(Run, fields=["id", "status", "session"], filters=filters)

    def kind(name):
        return next(part for part in reader.parameters["properties"][name]["anyOf"] if part != {"type": "null"})

    assert kind("status")["enum"][:2] == ["queued", "pending"]
    assert kind("id") == {"type": "string", "format": "uuid"} == kind("parent")
    assert kind("depth__lt")["type"] == kind("owner")["type"] == kind("created_at__year")["type"] == "integer"
    assert kind("created_at__date") == {"type": "string", "format": "date"}
    assert kind("output__isnull") == {"type": "boolean"}
    viewer.user_permissions.add(Permission.objects.get(codename="view_run"))
    run = make_run()
    found = {"id": str(run.id), "status": "pending", "session": str(run.session_id)}
    assert rows(reader, viewer, id=str(run.id), status="pending") == [found]


def test_what_was_read_is_not_read_again_after_a_crash(clock, viewer, monkeypatch):
    code(calling("read_user"), tools=[users()])
    run = drive(make_run(owner=viewer), dies="end")
    User.objects.create_user("newcomer")
    run = take_over(clock, run)
    assert run.output == 'ok: {"rows":[{"username":"viewer"}],"more":false}'

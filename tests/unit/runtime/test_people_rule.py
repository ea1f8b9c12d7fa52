"""Who may answer: the list that a person sees, the page that shows a button and the answer that counts agree."""

from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count, product

import pytest
from django.contrib.auth.models import AnonymousUser, Group, Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from ravi_django.kernel import Addressees, ForbiddenError, NotFoundError
from ravi_django.models import Delegation, HumanRequest, Run
from tests.support import world
from tests.support.runs import make_run

pytestmark = pytest.mark.django_db

PAY = "ravi.change_humanrequest"
numbers = count()


@dataclass
class Person:
    """What the rule goes by, said a second time."""

    name: str
    tenants: list[str] | None = field(default_factory=lambda: [""])
    address: tuple[str, ...] = ()
    superuser: bool = False
    staff: bool = False
    active: bool = True
    stands_in_for: tuple[str, ...] = ()  # now

    def may_alone(self, request, owner):
        own = owner == self.name
        if not self.active or is_own_call(self, request, owner):
            return False
        if self.superuser:
            return True
        meant = request.to in (*self.address, f"user:{self.name}") or (request.to == "owner" and own)
        if self.staff:
            meant |= request.to == "staff" or (request.to == "owner" and owner is None)
        return meant and self.in_tenant(request, owner)

    def in_tenant(self, request, owner):
        return self.superuser or self.tenants is None or request.tenant in self.tenants or owner == self.name


def is_own_call(person, request, owner):
    return request.four_eyes and owner == person.name and request.to != "owner"


PEOPLE = [
    Person("ann"),
    Person("mia", ["", "acme"], ("group:finance",)),
    Person("pia", None, (f"permission:{PAY}",)),
    Person("gus", ["acme"], ("group:finance", f"permission:{PAY}")),  # by a group of his
    Person("sue", staff=True),
    Person("tom", ["acme"], staff=True),
    Person("root", superuser=True),
    Person("gone", ["", "acme"], ("group:finance",), staff=True, active=False),
    Person("fired", superuser=True, active=False),
    Person("stranger"),
    Person("eve", stands_in_for=("mia",)),  # in "" alone: mia's of acme are kept from her
    Person("bob", ["", "acme"], stands_in_for=("ann", "pia")),
    Person("zoe", None, stands_in_for=("root", "gone")),
    Person("hal", staff=True, stands_in_for=("root", "pia")),
    Person("third", ["", "acme"], stands_in_for=("eve",)),  # what eve has from mia is not hers to pass on
    Person("late", ["", "acme"]),  # a delegation that is over, and one that is to come
]
BY_NAME = {person.name: person for person in PEOPLE}
TO = ["owner", "staff", "user:ann", "user:stranger", "group:finance", "group:none", f"permission:{PAY}"]


def may(person, request, owner, hook):
    """In their own right, or in the place of one who may."""
    if not person.active or is_own_call(person, request, owner) or not hook(person.name, request):
        return False
    if person.may_alone(request, owner):
        return True
    is_staffs = request.to == "staff" or (request.to == "owner" and owner is None)
    if not person.in_tenant(request, owner) or ((is_staffs or request.to.startswith("perm")) and not person.staff):
        return False
    others = [BY_NAME[name] for name in person.stands_in_for]
    return any(other.may_alone(request, owner) and hook(other.name, request) for other in others)


@pytest.fixture
def users(django_user_model):
    finance, payers = Group.objects.create(name="finance"), Group.objects.create(name="payers")
    pay = Permission.objects.get(content_type__app_label="ravi", codename=PAY.partition(".")[2])
    payers.permissions.add(pay)
    found = {}
    for person in PEOPLE:
        flags = {"is_superuser": person.superuser, "is_staff": person.staff, "is_active": person.active}
        user = found[person.name] = django_user_model.objects.create_user(person.name, **flags)
        if "group:finance" in person.address:
            user.groups.add(finance)
    found["pia"].user_permissions.add(pay)
    found["gus"].groups.add(payers)
    now = timezone.now()
    for person in PEOPLE:
        for name in person.stands_in_for:
            Delegation.objects.create(user=found[name], delegate=found[person.name], until=now + timedelta(days=1))
    day = timedelta(days=1)
    Delegation.objects.create(user=found["mia"], delegate=found["late"], since=now - 2 * day, until=now - day)
    Delegation.objects.create(user=found["mia"], delegate=found["late"], since=now + day)
    return found


def a_request(run=None, **fields):
    given = {"kind": "approval", "tool": "pay", "to": "group:finance", "path": f"p{next(numbers)}", **fields}
    return HumanRequest.objects.create(run=run or make_run(), **given)


@pytest.fixture
def requests(users):
    run = make_run()
    owners = [None, users["ann"], users["sue"], users["root"], users["mia"]]
    return HumanRequest.objects.bulk_create(
        HumanRequest(run=run, kind=kind, to=to, tenant=tenant, four_eyes=four_eyes, owner=owner, path=f"p{number}")
        for number, (kind, to, tenant, four_eyes, owner) in enumerate(
            product(["question", "approval"], TO, ["", "acme"], [False, True], owners)
        )
    )


def refuses_some(name, request):
    return not (name in ("mia", "root") and request.kind == "approval")


def site_hook(user, request):
    """Says no in all the ways that there are."""
    if refuses_some(user.username, request):
        return True
    if request.to == "staff":
        raise LookupError("no such cost centre")
    return 1  # nearly


@pytest.fixture(params=[False, True], ids=["", "with the site's hooks"])
def hooked(request, settings):
    if request.param:
        hooks = {"TENANT_OF": lambda user: BY_NAME[user.username].tenants, "MAY_ANSWER": site_hook}
        settings.RAVI = {**settings.RAVI, **hooks}
    return request.param


def test_list_page_and_answer_say_what_the_rule_says(users, requests, hooked):
    hook = refuses_some if hooked else lambda name, request: True
    names = {user.pk: name for name, user in users.items()}
    people_here = [person if hooked else Person(**{**vars(person), "tenants": [""]}) for person in PEOPLE]
    BY_NAME.update((person.name, person) for person in people_here)
    try:
        for person in people_here:
            user = users[person.name]
            listed = set(world.answerable(user).values_list("pk", flat=True))
            seen = set(world.people_visible(user).values_list("pk", flat=True))
            open_now = world.open_among(user, requests)
            for place, request in enumerate(requests, people_here.index(person)):
                owner = names.get(request.owner_id)
                case = (person.name, request.kind, request.to, request.tenant, request.four_eyes, owner)
                allowed = may(person, request, owner, hook)
                could = may(person, request, owner, lambda name, request: True)
                reads = could or (person.active and (person.superuser or owner == person.name))
                assert ((request.pk in listed), (request.pk in seen)) == (could, reads), case
                assert (request.pk in open_now) is allowed, case
                if place % 13:  # each of them in some places
                    continue
                assert _checked(user, request) == ("may" if allowed else "reads" if reads else "nothing"), case
                unsaved = copy(request)
                unsaved.pk = None
                assert world.may_answer_unsaved(user, unsaved) is allowed, case
    finally:
        BY_NAME.update((person.name, person) for person in PEOPLE)


def _checked(user, request):
    try:
        world.people_check(user, request)
    except ForbiddenError:
        return "reads"
    except NotFoundError:
        return "nothing"
    return "may"


def test_whom_an_address_means_may_answer_and_nobody_else_is_named(users, requests, hooked):
    some = requests[::7]
    alone = [users[person.name] for person in PEOPLE if not person.superuser and not person.stands_in_for]
    theirs = {user.pk: world.open_among(user, some) for user in alone}
    for request in some:
        meant = {user.pk for user in world.people_candidates(request.to, request)}
        for user in alone:
            may_now = request.pk in theirs[user.pk]
            assert (user.pk in meant) is may_now, (user, request.to, request.tenant, request.owner)


def test_the_sites_own_operator_may_all_and_nobody_unknown_anything(users, requests):
    assert world.people_check(None, requests[0]).user is None
    assert world.open_among(None, requests[:3]) == {request.pk for request in requests[:3]}
    for nobody in (AnonymousUser(), type(users["ann"])(username="unsaved", is_superuser=True)):
        assert _checked(nobody, requests[0]) == "nothing"
        assert not world.people_visible(nobody).exists() and not world.answerable(nobody).exists()
        assert world.open_among(nobody, requests) == set()


def test_who_was_dismissed_or_left_the_group_meanwhile_may_not_whatever_their_session_says(users, django_user_model):
    request = a_request()
    mia, gus = users["mia"], users["gus"]
    assert _checked(mia, request) == "may"
    django_user_model.objects.filter(pk=mia.pk).update(is_active=False)

    assert _checked(mia, request) == "nothing"
    assert not world.answerable(mia).exists()
    assert gus.has_perm(PAY), "kept on the user"
    gus.groups.clear()
    assert _checked(gus, a_request(to=f"permission:{PAY}")) == "nothing"


def test_a_delegation_is_named_in_what_is_kept_and_their_own_right_goes_before_it(users):
    found = world.people_check(users["eve"], a_request())
    assert (found.user, found.instead_of) == (users["eve"], users["mia"])
    Delegation.objects.create(user=users["gus"], delegate=users["mia"])
    assert world.people_check(users["mia"], a_request()).instead_of is None


def test_a_hook_that_refuses_the_one_or_cannot_be_imported_refuses_the_other_in_their_place(users, settings, caplog):
    asked = []

    def limit(user, request):
        asked.append(user.username)
        return user.username != "mia"

    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": limit}
    assert _checked(users["eve"], a_request()) == "reads"
    assert "mia" in asked
    settings.RAVI = {**settings.RAVI, "MAY_ANSWER": "no.such.module"}
    assert _checked(users["mia"], a_request()) == "reads"
    assert "MAY_ANSWER" in caplog.text


@pytest.mark.parametrize("given", [7, object(), [None], lambda: None], ids=["number", "object", "list", "raises"])
def test_a_tenant_hook_that_fails_shows_no_tenant(users, settings, caplog, given):
    settings.RAVI = {**settings.RAVI, "TENANT_OF": given if callable(given) else lambda user: given}
    other, own = a_request(), a_request(owner=users["mia"])

    assert (_checked(users["mia"], other), _checked(users["mia"], own)) == ("nothing", "may")
    assert "TENANT_OF" in caplog.text


@pytest.mark.parametrize(("name", "most"), [("mia", 4), ("eve", 7), ("stranger", 7), ("root", 3)])
def test_an_answer_costs_a_handful_of_queries(users, django_assert_max_num_queries, name, most):
    request = a_request()

    with django_assert_max_num_queries(most):
        _checked(users[name], request)


def test_lists_cost_the_same_for_any_number_of_rows_and_of_people_away(users, django_user_model):
    run, eve = make_run(), users["eve"]

    def costs(requests):
        return [queries_of(lambda: list(world.answerable(eve))), queries_of(lambda: world.open_among(eve, requests))]

    few = [a_request(run) for _ in range(2)]
    before = costs(few)
    many = [a_request(run) for _ in range(40)]
    for number in range(20):
        other = django_user_model.objects.create_user(f"away{number}")
        Delegation.objects.create(user=other, delegate=eve)

    assert before == costs(many)


def queries_of(work):
    with CaptureQueriesContext(connection) as found:
        work()
    return len(found)


# ----------------------------------------------------------------------------------------- users of other makes


class NumberedUser:
    """A user model whose user name is a number, with neither groups nor permissions."""

    USERNAME_FIELD = "number"

    def __init__(self, pk):
        self.pk, self.number = pk, pk

    def get_username(self):
        return self.number


def test_a_user_of_another_make_is_meant_by_its_name(monkeypatch):
    world.patch(monkeypatch, "addresses_get_user_model", lambda: NumberedUser)

    assert world.of_users([NumberedUser(7)], None) == {7: ["user:7"]}


def test_a_name_that_cannot_be_one_means_nobody(users, monkeypatch, django_user_model):
    monkeypatch.setattr(django_user_model, "USERNAME_FIELD", "id")
    mia = users["mia"]
    request = a_request(to=f"user:{mia.pk}")

    assert not world.has_recipient("user:mia", request)
    assert world.has_recipient(f"user:{mia.pk}", request)
    assert _checked(mia, request) == "may"
    assert _checked(users["ann"], request) == "nothing"


@pytest.mark.parametrize("to", ["group:finance", f"permission:{PAY}"])
def test_nobody_is_said_of_an_address_only_when_all_were_looked_at(users, settings, monkeypatch, django_user_model, to):
    """A hook is asked about one user after the other, and about so many and no more."""
    calls = []

    def tenant_of(user):
        calls.append(user.username)
        return "acme" if user.username == "member4" else ""

    settings.RAVI = {**settings.RAVI, "TENANT_OF": tenant_of}
    request, other = a_request(tenant="acme"), a_request(tenant="other")
    pay = Permission.objects.get(content_type__app_label="ravi", codename=PAY.partition(".")[2])
    finance = Group.objects.get(name="finance")
    finance.permissions.clear()
    finance.user_set.clear()
    pay.user_set.clear()
    pay.group_set.clear()
    finance.permissions.add(pay)
    for number in range(6):
        django_user_model.objects.create_user(f"member{number}").groups.add(finance)

    found = []
    for most in (3, 5, 6):
        world.patch(monkeypatch, "ADDRESSES_READ", most)
        found.append((world.has_recipient(to, request), world.has_recipient(to, other)))
        assert [one.username for one in world.people_candidates(to, request)] == (["member4"] if most > 3 else [])

    assert found == [(True, True), (True, True), (True, False)]
    calls.clear()
    world.has_recipient(to, request)
    assert calls == [f"member{number}" for number in range(5)], "none behind the first one that may"


class OwnBackend:
    """Gives permissions, and cannot say to whom."""

    def get_all_permissions(self, user, obj=None):
        return {"shop.pay"} if user.username == "stranger" else set()


def test_permissions_of_the_sites_own_backend_count(users, settings):
    settings.AUTHENTICATION_BACKENDS = [f"{__name__}.OwnBackend", "django.contrib.auth.backends.ModelBackend"]
    request = a_request(to="permission:shop.pay")
    Delegation.objects.create(user=users["stranger"], delegate=users["sue"])

    assert [_checked(users[name], request) for name in ("stranger", "sue", "mia")] == ["may", "may", "nothing"]
    assert world.has_recipient("permission:shop.pay", request), "nobody can say"
    assert world.people_candidates(f"permission:{PAY}", request) == [users["pia"], users["gus"]]


# ------------------------------------------------------------------------------------------------- four eyes


@pytest.mark.parametrize(
    ("kind", "to", "site", "expected"),
    [
        ("approval", "group:finance", True, True),
        ("uncertain", None, True, True),
        ("question", None, True, False),  # it is put to the owner
        ("input", None, True, False),
        ("approval", "group:finance", False, False),
        ("approval", Addressees.of({"steps": [{"to": "staff"}], "four_eyes": True}), False, True),
        ("approval", Addressees.of({"steps": [{"to": "staff"}], "four_eyes": False}), True, False),
    ],
)
def test_four_eyes_by_the_site_or_by_the_addressees(settings, kind, to, site, expected):
    settings.RAVI = {**settings.RAVI, "FOUR_EYES": site}
    given = None if to is None else Addressees.of(to)

    request = world.requests_new(Run(), "p", HumanRequest.Kind(kind), present=timezone.now(), to=given)

    assert request.four_eyes is expected

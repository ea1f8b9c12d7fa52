"""`ravi_doctor` on a site whose runs have tenants, and that has not said whose requests its people see."""

from __future__ import annotations

import pytest

from ravi_django.management import diagnosis
from tests.support.runs import make_run

pytestmark = pytest.mark.django_db


def test_runs_with_tenants_need_a_rule_of_whose_requests_people_see(settings):
    make_run()
    assert list(diagnosis.tenants()) == []
    make_run(tenant="acme")

    (finding,) = [found for found in diagnosis.examine() if found.what.startswith("tenants:")]

    assert (finding.level, "superusers alone" in finding.what) == ("warning", True)
    assert finding.mend.startswith("RAVI['TENANT_OF'] =")
    settings.RAVI = {**settings.RAVI, "TENANT_OF": lambda user: None}
    assert list(diagnosis.tenants()) == []

"""docs/tutorial: one project, typed from the pages' blocks. After each part its reader does what the page says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import answered, ask, log_in, page_of_process
from tests.support.docs import ACCOUNT, Page, Reader, quickstart

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

HELPER = "react/helper"
PARTS = ("orders", "complaints", "refunds", "returns", "shop-tests", "shop-on-a-server")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


def asks(page: Any, text: str, answer: str) -> None:
    ask(page, HELPER, text)
    answered(page, answer)


def test_a_shop_grows_from_part_to_part(reader: Reader, chromium: Any) -> None:
    orders, complaints, refunds, returns, tests, server = (
        [block for block in Page(part).blocks if block.language in ("python", "sh")] for part in PARTS
    )
    with chromium() as running:
        ada, ben, staff = (page_of_process(running, reader.url) for _ in range(3))

        reader.follow(quickstart())
        log_in(ada, "/ravi/", ACCOUNT["USERNAME"], ACCOUNT["PASSWORD"])
        asks(ada, "Where is order 7?", "Order 7 of ada left the warehouse this morning")

        reader.follow(orders)
        asks(ada, "Where is order 1?", "Lamp is in the warehouse")
        asks(ada, "Where is order 2?", "You have no order 2")
        asks(ada, "Show my orders.", "Lamp")
        assert "Chair" not in ada.inner_text(".answer .prose")
        log_in(ben, "/ravi/", "ben", "ben-has-a-chair")
        asks(ben, "Where is order 2?", "Chair is in the warehouse")

        reader.follow(complaints)
        asks(ada, 'I complain about order 1: "It is broken".', "complaint 1 about the Lamp is written")
        ada.click("text=Show the run")
        ada.click(".what [data-entry]:has-text('complain')")
        for body in ("It is broken", "complaint 1 about the Lamp is written"):
            ada.wait_for_selector(f"#detail .json:has-text('{body}')")
        asks(ada, "Where is order 1?", "Lamp is under complaint")
        asks(ada, 'I complain about order 2: "Too hard".', "matching query does not exist")

        reader.follow(refunds)
        ask(ada, HELPER, "Please refund order 1.")
        ada.wait_for_selector(".request .state:has-text('finance')")
        assert ada.locator(".request button").count() == 0
        reader.run("python manage.py runserver")
        log_in(staff, "/admin/login/?next=/admin/ravi/humanrequest/", "fay", "fay-has-the-money")
        staff.click("#result_list tbody a")
        staff.click("button[value=approve]")
        answered(ada, "49 euros for the Lamp are paid back")

        reader.follow(returns)
        asks(ada, "I send back order 1.", "we wait two weeks for the Lamp")
        ada.reload()
        ada.click(".talk span:text-is('Lamp')")
        ada.wait_for_selector("#status:has-text('Waiting')")
        staff.context.clear_cookies()
        log_in(staff, "/admin/login/?next=/admin/shop/return/", ACCOUNT["USERNAME"], ACCOUNT["PASSWORD"])
        staff.check("[name=_selected_action]")
        staff.select_option("[name=action]", "parcel_has_come")
        staff.click("[name=index]")
        answered(ada, "The Lamp is back. ada has opened the parcel.")

        reader.follow(tests[:-1])
        ran = reader.run(*tests[-1].steps)
        assert "Ran 5 tests" in ran and ran.rstrip().endswith("default'...")

        reader.stop("runserver")
        reader.env |= {"SHOP_HOST": "127.0.0.1", "SHOP_SECRET_KEY": "key-of-the-test"}
        reader.follow(server)
        log_in(ada, "/ravi/", ACCOUNT["USERNAME"], ACCOUNT["PASSWORD"])
        asks(ada, "Where is order 1?", "Lamp is under complaint")
        assert "warnings=0 errors=0" in reader.run("python manage.py ravi_doctor")
        assert ada.errors == ben.errors == staff.errors == []

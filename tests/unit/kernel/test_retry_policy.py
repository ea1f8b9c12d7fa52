from __future__ import annotations

import random

import pytest

from ravi_django.kernel import InvalidInputError, ModelError, RetryPolicy, TransientError

BUSY = TransientError("slow down", type="RateLimitError", status=429)
BAD = ModelError("bad", type="BadRequestError", status=400)


def test_without_names_the_adapter_decides() -> None:
    assert RetryPolicy().retries(BUSY)
    assert not RetryPolicy().retries(BAD)


@pytest.mark.parametrize("named", ["RateLimitError", 429])
def test_what_is_named_is_given_up_on(named: str | int) -> None:
    assert not RetryPolicy(give_up_on=frozenset({named})).retries(BUSY)


@pytest.mark.parametrize("named", ["BadRequestError", 400])
def test_what_is_named_is_tried_again(named: str | int) -> None:
    assert RetryPolicy(retry_on=frozenset({named})).retries(BAD)


def test_an_error_without_a_status_is_known_by_its_type_alone() -> None:
    cut = TransientError("cut", type="StreamCut")

    assert RetryPolicy(give_up_on=frozenset({429})).retries(cut)


def test_any_collection_of_names_does() -> None:
    policy = RetryPolicy(retry_on=[400], give_up_on=("RateLimitError",))  # type: ignore[arg-type]

    assert policy.retry_on == {400}
    assert hash(policy) == hash(RetryPolicy(retry_on=frozenset({400}), give_up_on=frozenset({"RateLimitError"})))


def test_delays_double_up_to_the_longest() -> None:
    policy = RetryPolicy(base_s=2, max_s=10, jitter=0)

    assert [policy.delay_s(failures) for failures in (0, 1, 2, 3, 1000)] == [2, 4, 8, 10, 10]


def test_delays_are_spread_as_far_as_the_jitter_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)

    assert RetryPolicy(base_s=8, jitter=0.25).delay_s(0) == 6
    assert RetryPolicy(base_s=8, jitter=1).delay_s(0) == 0


def test_the_provider_may_ask_for_more_time_within_the_cap() -> None:
    policy = RetryPolicy(base_s=1, jitter=0, max_retry_after_s=30)

    assert policy.delay_s(0, retry_after=7) == 7
    assert policy.delay_s(0, retry_after=0.1) == 1
    assert policy.delay_s(0, retry_after=86_400) == 30
    assert RetryPolicy(base_s=1, jitter=0, max_retry_after_s=0).delay_s(0, retry_after=7) == 1


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("max_attempts", 0), ("base_s", -1), ("max_s", -1), ("max_retry_after_s", -1), ("jitter", 1.5), ("jitter", -0.1)],
)
def test_what_makes_no_sense_is_refused_by_name(field: str, wrong: float) -> None:
    with pytest.raises(InvalidInputError) as caught:
        RetryPolicy(**{field: wrong})

    assert caught.value.field == field


def test_a_name_in_both_lists_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="429"):
        RetryPolicy(retry_on=frozenset({429}), give_up_on=frozenset({429}))

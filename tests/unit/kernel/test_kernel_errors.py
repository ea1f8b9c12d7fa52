import inspect
import re
from datetime import UTC, datetime

import pytest

from ravi_django.kernel import errors

CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, BaseException) and cls.__module__ == errors.__name__
}


def drawn_tree() -> dict[str, str]:
    """Child → parent, as the picture at the top of the module draws them."""
    parents: dict[str, str] = {}
    stack: list[str] = ["KernelError"]
    for line in (errors.__doc__ or "").splitlines():
        if drawn := re.match(r"((?:│   |    )*)(?:├── |└── )(\w+)", line):
            depth = len(drawn[1]) // 4 + 1
            stack[depth:] = [drawn[2]]
            parents[drawn[2]] = stack[depth - 1]
    return parents


def test_the_tree_at_the_top_of_the_file_is_the_real_one() -> None:
    real = {name: cls.__bases__[0].__name__ for name, cls in CLASSES.items()}
    del real["KernelError"], real["SuspendInterrupt"]

    assert drawn_tree() == real


def test_every_error_says_what_it_is() -> None:
    assert [name for name, cls in CLASSES.items() if not cls.__doc__] == []


def test_suspend_interrupt_passes_an_except_exception() -> None:
    with pytest.raises(errors.SuspendInterrupt):
        try:
            raise errors.SuspendInterrupt
        except Exception:
            pytest.fail("an agent's `except Exception` must not swallow a suspension")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.AgentNotFoundError("react/x"), ["react/x", "register"]),
        (errors.LeaseLostError("r1", 3), ["r1", "3", "another worker"]),
        (
            errors.LeaseLostError("r1", 3, owner="w2", until=datetime(2025, 1, 1, 12, 0, 5, tzinfo=UTC)),
            ["w2", "12:00:05"],
        ),
        (errors.AgentCrashError("r1", "react/x"), ["r1", "react/x", "retry"]),
        (errors.ConcurrentAppendError("r1", 4, 5), ["r1", "4", "5"]),
        (errors.HandlerError(KeyError("k")), ["KeyError", "k"]),
        (errors.CancellationError("closed by ada"), ["closed by ada"]),
    ],
)
def test_message_names_the_thing_and_the_mend(error: Exception, words: list[str]) -> None:
    assert [word for word in words if word not in str(error)] == []


def test_tool_arguments_error_names_the_argument_and_is_a_value_error() -> None:
    error = errors.ToolArgumentsError("argument 'amount' is missing", field="amount")

    assert error.field == "amount"
    assert isinstance(error, ValueError)


def test_model_error_keeps_the_providers_type_and_status() -> None:
    error = errors.ModelError("quota", type="RateLimitError", status=429)

    assert (str(error), error.type, error.status) == ("quota", "RateLimitError", 429)


def test_transient_and_permanent_are_apart() -> None:
    assert not issubclass(errors.TransientError, errors.PermanentError)
    assert issubclass(errors.BudgetExhaustedError, errors.PermanentError)
    assert errors.TransientError("slow down", retry_after=2.5).retry_after == 2.5

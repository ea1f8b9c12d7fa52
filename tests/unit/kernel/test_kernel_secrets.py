from __future__ import annotations

import pytest

from ravi_django.kernel import GenerationOptions, SecretRefusedError
from ravi_django.kernel.secrets import holds_secret, is_secret, secret_names

VALUE = "sk-never-show-me-0123456789"


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "apiKey",
        "X-Api-Key",
        "OPENAI_API_KEY",
        "aws_secret_access_key",
        "AWS_SESSION_TOKEN",
        "azure_ad_token",
        "Authorization",
        "client_secret",
        "vertex_credentials",
        "password",
        "token",
        "Cookie",
    ],
)
def test_names_of_keys(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "prompt_cache_key", "aws_access_key_id", "token_count", "secretary", "stop", "metadata", "keys"],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret(name)


def test_places_are_named_however_deep() -> None:
    value = {"headers": {"Authorization": "x"}, "list": [{"a": 1}, {"api_key": "x"}], "api_key": None}

    assert list(secret_names(value)) == ["headers.Authorization", "list.1.api_key"]
    assert holds_secret("extra_headers", {"X-Api-Key": "x"})
    assert not holds_secret("extra_headers", {"X-Trace": "x"})


@pytest.mark.parametrize(
    ("extra", "place"),
    [
        ({"api_key": VALUE}, "extra.api_key"),
        ({"extra_headers": {"Authorization": f"Bearer {VALUE}"}}, "extra.extra_headers.Authorization"),
    ],
)
def test_options_take_no_keys(extra: dict[str, object], place: str) -> None:
    for make in (lambda: GenerationOptions(extra=extra), lambda: GenerationOptions.model_validate({"extra": extra})):
        with pytest.raises(SecretRefusedError) as caught:
            make()

        assert caught.value.field == place
        assert place in str(caught.value)
        assert VALUE not in repr(caught.value)


def test_other_extras_pass() -> None:
    extra = {"seed": 7, "prompt_cache_key": "user-1", "extra_headers": {"X-Trace": "1"}}

    assert GenerationOptions(extra=extra).extra == extra

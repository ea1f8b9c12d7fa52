"""Each index is needed."""

from collections.abc import Iterator

import pytest
from django.apps import apps
from django.db.models import Model, Q, UniqueConstraint

from ravi_django.models.base import Owned

MODELS = [pytest.param(model, id=model.__name__) for model in apps.get_app_config("ravi").get_models()]
OWNED = [pytest.param(model, id=model.__name__) for model in Owned.__subclasses__()]


def beginnings(model: type[Model]) -> Iterator[str]:
    """The first columns of the indexes that every row is in that has a value there."""
    of = (*model._meta.indexes, *(one for one in model._meta.constraints if isinstance(one, UniqueConstraint)))
    for one in of:
        first = one.fields[0].lstrip("-") if one.fields else ""
        if first and one.condition in (None, Q((f"{first}__isnull", False))):
            yield first


@pytest.mark.parametrize("model", MODELS)
def test_no_column_has_an_index_beside_one_that_begins_with_it(model: type[Model]) -> None:
    own = {field.name for field in model._meta.concrete_fields if field.db_index and not field.unique}
    assert not own & set(beginnings(model))


@pytest.mark.parametrize("model", OWNED)
def test_rows_of_an_owner_are_found_by_an_index(model: type[Model]) -> None:
    """They are listed, and looked for when the user is deleted."""
    assert "owner" in beginnings(model)

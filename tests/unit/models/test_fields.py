"""The compact columns: rows are kept, so what a stored number or text stands for never changes."""

import pytest
from hypothesis import given, strategies as st

from ravi_django.models import Blob, JournalEntry, fields
from tests.support import columns, world

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9) | st.just("$text"), inner),
    max_leaves=9,
)
TEXT = st.builds(lambda text: {"type": "text", "text": text}, JSON)
RESULTS = JSON | st.fixed_dictionaries(
    {"content": st.lists(TEXT | JSON, max_size=2)}, optional={"$text": JSON, "x": JSON}
)


def test_a_number_stays_with_its_name():
    assert (fields.PHASES, fields.KINDS, fields.DIGESTS) == (columns.PHASES, columns.KINDS, columns.DIGESTS)
    assert fields.ROLES == columns.ROLES


def test_a_name_without_a_number_is_refused():
    with pytest.raises(ValueError, match=r"'tool\.calls' has no number"):
        str(JournalEntry.objects.filter(kind="tool.calls").query)


@pytest.mark.django_db
def test_a_digest_that_is_none_is_found_nowhere_and_not_stored():
    assert not Blob.objects.filter(id="no digest").exists()
    with pytest.raises(ValueError, match="id is 'no digest', not a hexadecimal text"):
        Blob.objects.create(id="no digest", body=b"", size=0)


def test_an_archive_of_the_first_release_can_be_read():
    assert world.archive_unpacked(bytes.fromhex("78bb23cff4548b8e0500011500b9")) == []


@given(RESULTS)
def test_a_result_is_read_as_it_was_written(result):
    assert fields.unpacked(fields.packed(result)) == result

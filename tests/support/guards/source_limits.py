"""How much sources bring and what is let go of it, and what of them nobody types; files that are replaced meanwhile."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

_FEEDS = "ravi_django/capabilities/feeds/"
_RULES = RUNTIME + "source_rules.py"
_UNREAD = (UNIT + "test_telling_unread.py",)
_ITEMS = (UNIT + "test_telling.py",)
_TYPED = UNIT + "test_adapter_sources.py"
_DROPS = UNIT + "test_adapter_sources.py"
_FILES = "tests/unit/capabilities/feeds/test_drop_directory.py"
_ADMIN = "tests/acceptance/admin/test_admin_sources.py"

SOURCE_LIMITS = [
    Mutant(
        "sources: so many edits that are told a day",
        STORE + "telling.py",
        "_within(None if room is None else room - len(news), edits)",
        "_within(None, edits)",
        _UNREAD,
    ),
    Mutant(
        "sources: edits that are told are counted",
        STORE + "telling.py",
        "count_today(source, len(bodies))",
        "count_today(source, len(news))",
        _UNREAD,
    ),
    Mutant(
        "sources: edits that nobody is told of take no room",
        STORE + "telling.py",
        "        if are_edits_told:  # of those",
        "        if True:  # of those",
        _UNREAD,
    ),
    Mutant(
        "sources: a count that is none counts for nothing",
        STORE + "source_items.py",
        "return items if isinstance(items, int) and not isinstance(items, bool) and items > 0 else 0",
        "return int(items or 0)",
        _UNREAD,
    ),
    Mutant(
        "sources: who cannot be told keeps nobody from being found",
        STORE + "saves.py",
        '.order_by("?")',
        '.order_by("id")',
        _UNREAD,
    ),
    Mutant(
        "sources: what is seen again meanwhile is not let go",
        STORE + "source_items.py",
        "rows.filter(id__in=[row_id",
        "SourceItem.objects.filter(id__in=[row_id",
        _ITEMS,
    ),
    Mutant(
        "sources: what is let go goes in bounded batches",
        STORE + "source_items.py",
        '.values_list("id", "identity")[:ROWS])',
        '.values_list("id", "identity"))',
        _ITEMS,
    ),
    Mutant(
        "drop: what has come in a file's place is not put aside",
        _FEEDS + "drop.py",
        "if self._stamp(taken.name) != taken.stamp:",
        "if False:",
        (_FILES, _DROPS),
    ),
    Mutant(
        "drop: another file of that size and time is another",
        _FEEDS + "drop.py",
        "return about.st_ino, about.st_size, about.st_mtime_ns",
        "return 0, about.st_size, about.st_mtime_ns",
        (_FILES,),
    ),
    Mutant(
        "drop: a file of another size is another",
        _FEEDS + "drop.py",
        "return about.st_ino, about.st_size, about.st_mtime_ns",
        "return about.st_ino, 0, about.st_mtime_ns",
        (_FILES,),
    ),
    Mutant(
        "drop: a file that was written since is another",
        _FEEDS + "drop.py",
        "return about.st_ino, about.st_size, about.st_mtime_ns",
        "return about.st_ino, about.st_size, 0",
        (_FILES,),
    ),
    Mutant(
        "drop: where a clock is ahead a file is looked at twice",
        _FEEDS + "drop.py",
        "if about.st_mtime > now:",
        "if False:",
        (_FILES,),
    ),
    Mutant(
        "drop: one that has changed between two looks is not whole",
        _FEEDS + "drop.py",
        " or self._is_still(file[1], ahead[file[1]])]",
        " or True]",
        (_FILES,),
    ),
    Mutant(
        "sources: what is written here is refused when it is typed",
        _RULES,
        "        for name in written(options):",
        "        for name in ():",
        (_TYPED,),
    ),
    Mutant(
        "sources: a row's own options are not taken for typed ones",
        _RULES,
        "    if source._state.adding:\n",
        "    if True:\n",
        (_TYPED,),
    ),
    Mutant(
        "hook: a secret has no comma",
        _RULES,
        'if "," in secret or not',
        "if not",
        (_TYPED,),
    ),
    Mutant(
        "hook: a secret is not short, nor without room for the next",
        _RULES,
        " or not SECRET_LEAST <= len(secret) <= SECRET_MOST:",
        ":",
        (_TYPED,),
    ),
    Mutant(
        "hook: the secrets of before keep working",
        _RULES,
        "if source.secret and source._state.adding:",
        "if source.secret:",
        (_TYPED,),
    ),
    Mutant(
        "source admin: what is written here is not typed into a new one",
        "ravi_django/admin/source_form.py",
        "return {**source_rules.typed(given), **self._written}",
        "return {**given, **self._written}",
        (_ADMIN,),
    ),
    Mutant(
        "source admin: what is written here is not typed over",
        "ravi_django/admin/sources.py",
        "        obj.options = {**source_rules.typed(obj.options), **kept}\n",
        "        obj.options = {**kept, **obj.options}\n",
        (_ADMIN,),
    ),
    Mutant(
        "source admin: what is written here is the locked row's",
        "ravi_django/admin/sources.py",
        "kept = source_rules.written(row.options)",
        "kept = source_rules.written(obj.options)",
        (_ADMIN,),
    ),
    Mutant(
        "source admin: what is written here is not shown among what is typed",
        "ravi_django/admin/source_form.py",
        '            self.initial["options"] = source_rules.typed(self.instance.options)\n',
        "            pass\n",
        (_ADMIN,),
    ),
    Mutant(
        "source admin: nor to whom may only look",
        "ravi_django/admin/sources.py",
        "        shown = source_rules.typed(source.options)\n",
        "        shown = source.options\n",
        (_ADMIN,),
    ),
]

"""Guards of e-mails to people, of the page behind their links, and of the figures."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

_MAIL = UNIT + "test_request_mail.py"
_PAGE = "tests/acceptance/api/test_decide_page.py"
_METRICS = "tests/acceptance/api/test_rest_metrics.py"
_SLA = UNIT + "test_sla.py"
_LINKS = STORE + "links.py"
_DECIDE = "ravi_django/api/decide.py"

REQUEST_MAIL = [
    Mutant(
        "mail: one sender claims a link",
        _LINKS,
        "filter(id=link.id, sent_at=None, tries=link.tries)",
        "filter(id=link.id)",
        (_MAIL,),
    ),
    Mutant(
        "mail: nobody is written to about a request that has changed",
        _LINKS,
        ".filter(Exists(same))",
        "",
        (_MAIL,),
    ),
    Mutant(
        "mail: whom it is reassigned to meanwhile is not taken for written to",
        _LINKS,
        "filter(id=request.id, version=request.version, notified__lt=request.level)",
        "filter(id=request.id, notified__lt=request.level)",
        (_MAIL,),
    ),
    Mutant(
        "mail: a failed one is looked for again, whoever has taken the level for done",
        _LINKS,
        "            done.update(notified=link.level - 1)\n",
        "            done.exists()\n",
        (_MAIL,),
    ),
    Mutant(
        "mail: a failed one waits",
        _LINKS,
        "    return links.filter(Q(retry_at=None) | Q(retry_at__lte=clock.now()))\n",
        "    return links\n",
        (_MAIL,),
    ),
    Mutant(
        "mail: a failed one is given up in the end",
        _LINKS,
        "level=request.level, sent_at=None, tries__lt=TRIES)\n    return list",
        "level=request.level, sent_at=None)\n    return list",
        (_MAIL,),
    ),
    Mutant(
        "mail: a request is not kept open for one that is given up",
        _LINKS,
        "    if left.filter(tries__lt=TRIES).exists():\n",
        "    if left.exists():\n",
        (_MAIL,),
    ),
    Mutant(
        "mail: a server that has failed is left alone",
        RUNTIME + "mail.py",
        "    if not conf.REQUEST_EMAIL or time.monotonic() < _rests_until:\n",
        "    if not conf.REQUEST_EMAIL:\n",
        (_MAIL,),
    ),
    Mutant(
        "mail: a site that has it off sends no task",
        RUNTIME + "mail.py",
        "    if conf.REQUEST_EMAIL:\n        hint([request.pk])\n",
        "    hint([request.pk])\n",
        (_MAIL,),
    ),
    Mutant(
        "mail: a site that has it off asks nothing in the sweep",
        RUNTIME + "mail.py",
        "    if not conf.REQUEST_EMAIL:\n        return 0\n",
        "",
        (_MAIL,),
    ),
    Mutant(
        "mail: the sweep takes a bounded number",
        _LINKS,
        'values_list("id", flat=True)[:limit])',
        'values_list("id", flat=True))',
        (_MAIL,),
    ),
    Mutant(
        "mail: a subject has no line break",
        RUNTIME + "letters.py",
        'return "".join(" " if not char.isprintable() else char for char in " ".join(text.split()))',
        "return text",
        (_MAIL,),
    ),
    Mutant(
        "mail: keys stay out",
        RUNTIME + "letters.py",
        '"text": _short(visible(redact(request.text)), MOST_TEXT)',
        '"text": _short(visible(request.text), MOST_TEXT)',
        (_MAIL,),
    ),
    Mutant(
        "decide: the link is one person's",
        RUNTIME + "links.py",
        "rows.filter(id=id_of(token), user_id=user.pk)",
        "rows.filter(id=id_of(token))",
        (_PAGE,),
    ),
    Mutant(
        "decide: a signature has its time",
        RUNTIME + "links.py",
        "unsign(token, max_age=conf.REQUEST_LINK_S)",
        "unsign(token)",
        (_PAGE,),
    ),
    Mutant(
        "decide: a link has its time",
        RUNTIME + "links.py",
        "    if store.is_link_expired(link):\n",
        "    if False:\n",
        (_PAGE,),
    ),
    Mutant(
        "decide: only with the CSRF token",
        _DECIDE,
        "        if check.process_view(request, None, (), {}):\n",
        "        if False:\n",
        (_PAGE,),
    ),
    Mutant(
        "decide: an earlier level's link decides nothing",
        _DECIDE,
        "    if link.level != asked.level:\n",
        "    if False:\n",
        (_PAGE,),
    ),
    Mutant(
        "decide: a used link decides nothing",
        _DECIDE,
        "    if link.used_at is not None:\n",
        "    if False:\n",
        (_PAGE,),
    ),
    Mutant(
        "decide: the link is used once, whoever was first",
        _DECIDE,
        "            if not store.use_link(self.link):\n",
        "            if not store.use_link(self.link) and False:\n",
        (_PAGE,),
    ),
    Mutant(
        "decide: the answer and the use are one commit",
        _DECIDE,
        "        with transaction.atomic():\n",
        "        if True:\n",
        (_PAGE,),
    ),
    Mutant(
        "decide: it is the logged-in user who decides",
        _DECIDE,
        "human.answer(self.link.request_id, by=request.user, **given)",
        "human.answer(self.link.request_id, by=None, **given)",
        (_PAGE,),
    ),
    Mutant(
        "decide: on what was shown",
        "ravi_django/pages/form.py",
        ', "version": int(self.cleaned_data["version"])}',
        "}",
        (_PAGE,),
    ),
    Mutant(
        "metrics: for operators",
        "ravi_django/api/metrics.py",
        'has(user, "is_superuser") or (has(user, "is_staff") and permits(user, "ravi.view_humanrequest"))',
        "True",
        (_METRICS,),
    ),
    Mutant(
        "metrics: of one's tenants",
        RUNTIME + "sla.py",
        "rows if tenants is None else rows.filter(tenant__in=tenants)",
        "rows",
        (_METRICS,),
    ),
    Mutant(
        "metrics: labels are escaped",
        "ravi_django/api/metrics.py",
        r"""    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")""",
        "    return value",
        (_METRICS,),
    ),
    Mutant(
        "mail: whoever is reassigned to is written to anew, and the old link is gone",
        STORE + "escalations.py",
        "        forget_links([request.id], request.level)\n",
        "",
        (_MAIL,),
    ),
    Mutant(
        "mail: a retry has them written to anew, and the old links are gone",
        STORE + "retry.py",
        "        forget_links([request.id for request in closed])\n",
        "",
        (_MAIL,),
    ),
    Mutant(
        "figures: an address is timed from when it was asked",
        RUNTIME + "requests.py",
        "    request.asked_at = present\n",
        "",
        (_SLA,),
    ),
    Mutant(
        "figures: who let pass what was opened before is not counted",
        RUNTIME + "sla.py",
        "rows.filter(id__gte=first, passed__isnull=False)",
        "rows.filter(passed__isnull=False)",
        (_SLA,),
    ),
    Mutant(
        "figures: only what was opened since",
        RUNTIME + "sla.py",
        "_grouped(rows.filter(id__gte=first)).annotate",
        "_grouped(rows).annotate",
        (_SLA,),
    ),
]

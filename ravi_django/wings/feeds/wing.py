"""What this wing registers."""

from ravi_django.wing import Wing

WING = Wing(
    name="feeds",
    calls={
        "emit": "social.publications.emit",
        "ctx.emit": "social.calls.emit",
        "ctx.follow": "social.calls.follow",
        "ctx.unfollow": "social.calls.unfollow",
        "ctx.update_follows": "social.calls.update",
        "ravi_doctor --rekey": "sources.webhooks.rekey",
    },
    urls={"the API": "web.urls.routes"},
    admin={
        "FollowAdmin": "web.admin_graph.FollowAdmin",
        "PublicationAdmin": "web.admin_graph.PublicationAdmin",
        "ScheduleAdmin": "web.admin_schedules.ScheduleAdmin",
        "SourceAdmin": "web.admin_sources.SourceAdmin",
        "SourceItemAdmin": "web.admin_sources.SourceItemAdmin",
    },
    kinds={"information": "news.specs.of_spec", "personal_feed": "news.specs.of_spec"},
    frames={"feed.curated": "news.curation.frame"},
    rehearsal={"a news item": "news.rehearsal.about_item"},
    findings={"sources": "web.findings.sources", "schedules": "web.findings.schedules"},
    sweep={
        "the schedules": "schedules.ticking.tick",
        "the fan-outs": "social.fan_out.sweep",
        "the sources": "sources.poll.sweep",
    },
    tasks={"ravi.fan_out": "social.fan_out.run", "ravi.poll_sources": "sources.poll.poll_due"},
    prune={
        "ticks": "schedules.ticking.prune",
        "publications": "social.publications.prune",
        "source_items": "sources.items.prune",
    },
)

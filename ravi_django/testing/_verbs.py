"""Doors of ravi_django's own tests: one name for each function, class and value that they reach inside the package.

Private: a site's tests use `ravi_django.testing`. A file of the package moves by changing its rows here, and no test.
"""

from importlib import import_module
from typing import Any

VERBS = {
    # ravi django
    "RAVI_DJANGO_EXPORTS": "ravi_django:_EXPORTS",
    # access
    "access_load": "ravi_django.access:_load",
    # agents, loop
    "loop_deliver": "ravi_django.agents.messages:deliver",
    "drop_turns": "ravi_django.agents.memory.agent_context:drop_turns",
    "final_text": "ravi_django.agents.messages:final_text",
    "load_history": "ravi_django.agents.memory.agent_context:load_history",
    "message_to_chat": "ravi_django.agents.messages:message_to_chat",
    "persist_turns": "ravi_django.agents.memory.agent_context:persist_turns",
    "summarize": "ravi_django.agents.messages:summarize",
    # agents, task
    "task_agent_id": "ravi_django.agents.current:_task_agent_id",
    "task_agent_label": "ravi_django.agents.current:_task_agent_label",
    "task_ctx": "ravi_django.agents.current:_task_ctx",
    "task_may_summarize": "ravi_django.agents.current:_task_may_summarize",
    "task_model": "ravi_django.agents.current:_task_model",
    "task_parent_agent_id": "ravi_django.agents.current:_task_parent_agent_id",
    "task_run_id": "ravi_django.agents.current:_task_run_id",
    "task_thread_id": "ravi_django.agents.current:_task_thread_id",
    # agents, compaction, tokens
    "TOKENS_TURN_S": "ravi_django.agents.memory.compaction.tokens:_TURN_S",
    # agents, dangling
    "close_dangling": "ravi_django.agents.memory.turns:close_dangling",
    "DANGLING_INTERRUPTED": "ravi_django.agents.memory.turns:INTERRUPTED",
    # agents, personal feed
    "PERSONAL_FEED_PREFER": "ravi_django.agents.news.personal_feed:_PREFER",
    # api, health
    "health_last": "ravi_django.api.health:_last",
    # capabilities, feeds, adapter
    "adapters_by_kind": "ravi_django.capabilities.feeds.adapter:_adapters",
    # capabilities, feeds, fetch
    "fetch_max_age": "ravi_django.capabilities.feeds.fetch:_max_age",
    "fetch_retry_after": "ravi_django.capabilities.feeds.fetch:_retry_after",
    # capabilities, feeds, signatures
    "SIGNATURES_NOBODYS": "ravi_django.capabilities.feeds.signatures:_NOBODYS",
    # capabilities, llm, fallback
    "fallback_limits": "ravi_django.capabilities.llm.fallback:_limits",
    # capabilities, llm, pricing
    "pricing_table": "ravi_django.capabilities.llm.pricing:_table",
    # capabilities, llm, wire
    "wire_convert": "ravi_django.capabilities.llm.wire:_convert",
    # db
    "db_connection": "ravi_django.db:connection",
    # kernel, identity
    "TopicId": "ravi_django.kernel.identity:TopicId",
    # kernel, people
    "Addressees": "ravi_django.kernel.people:Addressees",
    # models, ids
    "ids_last": "ravi_django.models.ids:_last",
    # adding sources
    "add_source": "ravi_django.runtime.sources.adding:add_source",
    # addresses
    "addresses_get_user_model": "ravi_django.runtime.people.addressees:get_user_model",
    "of_users": "ravi_django.runtime.people.addressees:of_users",
    "ADDRESSES_READ": "ravi_django.runtime.people.addressees:READ",
    "users_at": "ravi_django.runtime.people.addressees:users_at",
    # answers
    "EVERY_ACTION": "ravi_django.runtime.people.answers:EVERY_ACTION",
    # appending
    "append_repeatable": "ravi_django.runtime.lease.appender:append_repeatable",
    "Appender": "ravi_django.runtime.lease.appender:Appender",
    "LoopConnection": "ravi_django.runtime.lease.appender:LoopConnection",
    "APPENDING_REST_S": "ravi_django.runtime.lease.appender:REST_S",
    # archive
    "archive": "ravi_django.runtime.streams.archive:archive",
    # background
    "background_hint": "ravi_django.runtime.runs.background:hint",
    "background_lock": "ravi_django.runtime.runs.background:_lock",
    "background_stop": "ravi_django.runtime.runs.background:stop",
    # backoff
    "delay_s": "ravi_django.runtime.lease.backoff:delay_s",
    # board
    "board_add": "ravi_django.runtime.teams.board:add",
    "board_last_number": "ravi_django.runtime.teams.board:_last_number",
    "MAX_ALL": "ravi_django.runtime.teams.board:MAX_ALL",
    "MAX_TASKS": "ravi_django.runtime.teams.board:MAX_TASKS",
    "Place": "ravi_django.runtime.teams.board:Place",
    "board_shown": "ravi_django.runtime.teams.board:shown",
    "board_update": "ravi_django.runtime.teams.board:update",
    # bodies
    "bodies_forget": "ravi_django.runtime.catalog.specs:forget",
    "bodies_keep": "ravi_django.runtime.journal.bodies:keep",
    # branches
    "Branches": "ravi_django.runtime.lease.paths:Branches",
    # admission
    "budgets_estimate": "ravi_django.runtime.model_calls.admission:_estimate",
    "budgets_forget": "ravi_django.runtime.model_calls.admission:forget",
    "budgets_largest": "ravi_django.runtime.model_calls.admission:_largest",
    # buffer
    "Batch": "ravi_django.runtime.streams.buffer:Batch",
    "get_buffer": "ravi_django.runtime.streams.buffer:get_buffer",
    "Lost": "ravi_django.runtime.streams.buffer:Lost",
    "MarkReached": "ravi_django.runtime.streams.buffer:MarkReached",
    "stream_url": "ravi_django.runtime.streams.buffer:stream_url",
    # buffer database
    "DatabaseBuffer": "ravi_django.runtime.streams.table:DatabaseBuffer",
    # buffer valkey
    "BUFFER_VALKEY_POLL_S": "ravi_django.runtime.streams.valkey:POLL_S",
    "ValkeyBuffer": "ravi_django.runtime.streams.valkey:ValkeyBuffer",
    # bus, base
    "Bus": "ravi_django.runtime.events.bus:Bus",
    "BASE_DEAD": "ravi_django.runtime.events.bus:DEAD",
    "BASE_EVENTS": "ravi_django.runtime.events.bus:EVENTS",
    "HANDLER_S": "ravi_django.runtime.events.bus:HANDLER_S",
    "NOT_YET_S": "ravi_django.runtime.events.bus:NOT_YET_S",
    "NotYet": "ravi_django.runtime.events.bus:NotYet",
    "Relayed": "ravi_django.runtime.events.bus:Relayed",
    "BASE_RETRY_S": "ravi_django.runtime.events.bus:RETRY_S",
    "BASE_TRIES": "ravi_django.runtime.events.bus:TRIES",
    # bus, courier
    "courier_hint": "ravi_django.runtime.events.relay:hint",
    "IDLE_S": "ravi_django.runtime.events.relay:IDLE_S",
    "courier_join": "ravi_django.runtime.events.relay:join",
    "courier_lock": "ravi_django.runtime.events.relay:_lock",
    "courier_send": "ravi_django.runtime.events.relay:_send",
    "courier_thread": "ravi_django.runtime.events.relay:_thread",
    "courier_time": "ravi_django.runtime.events.relay:time",
    "courier_wake": "ravi_django.runtime.events.relay:_wake",
    # bus, member
    "FORGET_S": "ravi_django.runtime.events.group:FORGET_S",
    # bus, memory
    "MEMORY_KEPT": "ravi_django.runtime.events.memory:KEPT",
    "MemoryBus": "ravi_django.runtime.events.memory:MemoryBus",
    # bus, outgoing
    "enqueue": "ravi_django.runtime.events.relay:enqueue",
    # bus, relay
    "RELAY_BATCH": "ravi_django.runtime.events.relay:BATCH",
    "RELAY_BATCH_BYTES": "ravi_django.runtime.events.relay:BATCH_BYTES",
    "relay_event": "ravi_django.runtime.events.relay:_event",
    "relay_one_here": "ravi_django.runtime.events.relay:_one_here",
    "relay": "ravi_django.runtime.events.relay:relay",
    "relay_safely": "ravi_django.runtime.events.relay:relay_safely",
    "RELAY_REST_S": "ravi_django.runtime.events.relay:REST_S",
    "relay_rests_until": "ravi_django.runtime.events.relay:_rests_until",
    # bus, site
    "forget_buses": "ravi_django.runtime.events.site:forget_buses",
    "get_bus": "ravi_django.runtime.events.site:get_bus",
    # bus, valkey
    "ValkeyBus": "ravi_django.runtime.events.valkey:ValkeyBus",
    # bus feed
    "feed_agent": "ravi_django.runtime.sources.bus_feed:feed_agent",
    # cancel
    "cancel": "ravi_django.runtime.lifecycle.cancel:cancel",
    # catalog
    "sync_after_migrate": "ravi_django.runtime.catalog.rows:sync_after_migrate",
    "sync_agents": "ravi_django.runtime.catalog.rows:sync_agents",
    # clock
    "clock_after": "ravi_django.runtime.db.clock:after",
    "clock_fixed": "ravi_django.runtime.db.clock:fixed",
    "now": "ravi_django.runtime.db.clock:now",
    # context
    "current_context": "ravi_django.runtime.lease.state:current_context",
    "DurableContext": "ravi_django.runtime.engine.context:DurableContext",
    # database
    "CLOSE_S": "ravi_django.runtime.db.threads:CLOSE_S",
    "DatabaseThreads": "ravi_django.runtime.db.threads:DatabaseThreads",
    "forget_readers": "ravi_django.runtime.db.threads:forget_readers",
    "DATABASE_REPEAT_S": "ravi_django.runtime.db.threads:REPEAT_S",
    "DATABASE_RETRY_S": "ravi_django.runtime.db.threads:RETRY_S",
    "with_retry": "ravi_django.runtime.db.threads:with_retry",
    # decisions
    "decisions_decided": "ravi_django.runtime.people.decisions:decided",
    "decisions_told": "ravi_django.runtime.people.decisions:told",
    # dispatch
    "DISPATCH_ANSWER_S": "ravi_django.runtime.runs.hints:ANSWER_S",
    "broker_connection": "ravi_django.runtime.runs.hints:broker_connection",
    "CONNECT_S": "ravi_django.runtime.runs.hints:CONNECT_S",
    "dispatch_down_until": "ravi_django.runtime.runs.hints:_down_until",
    "on_commit": "ravi_django.runtime.runs.hints:on_commit",
    "dispatch_pools": "ravi_django.runtime.runs.hints:_pools",
    "dispatch_publish": "ravi_django.runtime.runs.hints:publish",
    "DISPATCH_REST_S": "ravi_django.runtime.runs.hints:REST_S",
    "dispatch_send": "ravi_django.runtime.runs.hints:send",
    "send_many": "ravi_django.runtime.runs.hints:send_many",
    # drops
    "AT_ONCE_BYTES": "ravi_django.runtime.sources.pollers:AT_ONCE_BYTES",
    "drops_look": "ravi_django.runtime.sources.pollers:_look",
    "drops_put_aside": "ravi_django.runtime.sources.pollers:_put_aside",
    # effects
    "EFFECTS_REPEAT_S": "ravi_django.runtime.lease.effects:REPEAT_S",
    # engine
    "Active": "ravi_django.runtime.engine.drive:Active",
    "Engine": "ravi_django.runtime.engine.engine:Engine",
    "EnginePublisher": "ravi_django.runtime.engine.engine:Publisher",
    # entries
    "BLOB_KEY": "ravi_django.runtime.journal.entries:BLOB_KEY",
    "blob_value": "ravi_django.runtime.journal.entries:blob_value",
    "entries_encode": "ravi_django.runtime.journal.entries:encode",
    "Entry": "ravi_django.runtime.journal.entries:Entry",
    "make_blob": "ravi_django.runtime.journal.entries:make_blob",
    "make_text_blob": "ravi_django.runtime.journal.entries:make_text_blob",
    "NewTurn": "ravi_django.runtime.journal.entries:NewTurn",
    "ENTRIES_SCHEMA": "ravi_django.runtime.journal.entries:SCHEMA",
    # erasing
    "delete_session": "ravi_django.runtime.lifecycle.erasing:delete_session",
    "erasing_sweep": "ravi_django.runtime.lifecycle.erasing:sweep",
    "ERASING_SWEPT": "ravi_django.runtime.lifecycle.erasing:SWEPT",
    "erasing_work": "ravi_django.runtime.lifecycle.erasing:work",
    # events
    "events_archived": "ravi_django.runtime.streams.reading:archived",
    "events_follow": "ravi_django.runtime.streams.reading:follow",
    "follow_topic": "ravi_django.runtime.streams.reading:follow_topic",
    "events_page": "ravi_django.runtime.streams.reading:page",
    "EVENTS_PROGRESS": "ravi_django.runtime.streams.reading:PROGRESS",
    # fan out
    "FAN_OUT_BATCHES": "ravi_django.runtime.social.fan_out:BATCHES",
    "deliver_due": "ravi_django.runtime.social.fan_out:deliver_due",
    "FAN_OUT_FEW": "ravi_django.runtime.social.fan_out:FEW",
    "fan_out_hint": "ravi_django.runtime.social.fan_out:hint",
    "fan_out_run": "ravi_django.runtime.social.fan_out:run",
    "fan_out_sweep": "ravi_django.runtime.social.fan_out:sweep",
    "fan_out_wake": "ravi_django.runtime.social.fan_out:wake",
    # follow
    "emit": "ravi_django.runtime.social.publications:emit",
    "follow": "ravi_django.runtime.social.follows:follow",
    "followers": "ravi_django.runtime.social.follows:followers",
    "MAX_HOPS": "ravi_django.runtime.social.publications:MAX_HOPS",
    # fork
    "fork": "ravi_django.runtime.lifecycle.fork:fork",
    # frames
    "collapse": "ravi_django.runtime.streams.frames:collapse",
    "frames_delta": "ravi_django.runtime.streams.frames:delta",
    "frames_durable": "ravi_django.runtime.streams.frames:durable",
    "Frame": "ravi_django.runtime.streams.frames:Frame",
    "Source": "ravi_django.runtime.streams.frames:Source",
    "stream_done": "ravi_django.runtime.streams.frames:stream_done",
    # gate
    "gate_datetime": "ravi_django.runtime.lease.gate:datetime",
    "FOREIGN_S": "ravi_django.runtime.lease.gate:FOREIGN_S",
    "GATE_LOOK_S": "ravi_django.runtime.lease.gate:LOOK_S",
    # health
    "ANSWER_S": "ravi_django.runtime.engine.health:ANSWER_S",
    "Check": "ravi_django.runtime.engine.health:Check",
    "check_all": "ravi_django.runtime.engine.health:check_all",
    "event_bus": "ravi_django.runtime.engine.health:event_bus",
    "health_events": "ravi_django.runtime.engine.health:events",
    "LIMIT_S": "ravi_django.runtime.engine.health:LIMIT_S",
    "health_sweep": "ravi_django.runtime.engine.health:sweep",
    "Unhealthy": "ravi_django.runtime.engine.health:Unhealthy",
    "health_worker": "ravi_django.runtime.engine.health:worker",
    # heartbeat
    "Heartbeat": "ravi_django.runtime.engine.heartbeat:Heartbeat",
    # history
    "history_append": "ravi_django.runtime.lease.history:_append",
    "DjangoHistoryProvider": "ravi_django.runtime.lease.history:DjangoHistoryProvider",
    "history_read": "ravi_django.runtime.lease.history:read",
    "read_window": "ravi_django.runtime.lease.history:read_window",
    # human
    "answer": "ravi_django.runtime.people.answers:answer",
    "human_cancel": "ravi_django.runtime.people.answers:cancel",
    "reassign": "ravi_django.runtime.people.answers:reassign",
    "human_resolve": "ravi_django.runtime.people.answers:resolve",
    # inprocess
    "Runtime": "ravi_django.runtime.engine.worker:Runtime",
    # letters
    "MOST_SUBJECT": "ravi_django.runtime.people.mail:MOST_SUBJECT",
    "title_of": "ravi_django.runtime.people.mail:title_of",
    # limits
    "close_one": "ravi_django.limits:close_one",
    "limits_count": "ravi_django.limits:count",
    "limits_limit": "ravi_django.limits:limit",
    "open_one": "ravi_django.limits:open_one",
    "OPEN_S": "ravi_django.limits:OPEN_S",
    "limits_take": "ravi_django.limits:take",
    # links
    "id_of": "ravi_django.runtime.people.links:id_of",
    "token_of": "ravi_django.runtime.people.links:token_of",
    # mail
    "MAIL_BATCH": "ravi_django.runtime.people.mail:BATCH",
    "mail_connection": "ravi_django.runtime.people.mail:_connection",
    "mail_hint": "ravi_django.runtime.people.mail:hint",
    "mail_letter_to": "ravi_django.runtime.people.mail:letter_to",
    "on_request": "ravi_django.runtime.people.mail:on_request",
    "mail_rests_until": "ravi_django.runtime.people.mail:_rests_until",
    "mail_send": "ravi_django.runtime.people.mail:send",
    "mail_site_connection": "ravi_django.runtime.people.mail:_site_connection",
    "SMTP_TIMEOUT_S": "ravi_django.runtime.people.mail:SMTP_TIMEOUT_S",
    "mail_sweep": "ravi_django.runtime.people.mail:sweep",
    # middleware, audit log
    "audit_log_write_audit": "ravi_django.runtime.middleware.audit_log:write_audit",
    # middleware, rate limit
    "RATE_LIMIT_LOOK_BACK": "ravi_django.runtime.middleware.rate_limit:_LOOK_BACK",
    # middleware, response cache
    "TIMEOUT_S": "ravi_django.runtime.middleware.response_cache:TIMEOUT_S",
    # model sources
    "connect": "ravi_django.runtime.sources.saves:connect",
    "model_sources_declared": "ravi_django.runtime.sources.saves:_declared",
    "DECLARED_S": "ravi_django.runtime.sources.saves:DECLARED_S",
    "model_sources_faults": "ravi_django.runtime.sources.saves:faults",
    "field_faults": "ravi_django.runtime.sources.saves:field_faults",
    "model_sources_forget": "ravi_django.runtime.sources.saves:_forget",
    "LATE_S": "ravi_django.runtime.sources.saves:LATE_S",
    "named_models": "ravi_django.runtime.sources.saves:named_models",
    "model_sources_note_save": "ravi_django.runtime.sources.saves:note_save",
    "model_sources_read": "ravi_django.runtime.sources.saves:_read",
    "model_sources_run": "ravi_django.runtime.sources.saves:run",
    "model_sources_sources_of": "ravi_django.runtime.sources.saves:_sources_of",
    "model_sources_sweep": "ravi_django.runtime.sources.saves:sweep",
    # notices
    "notices_close": "ravi_django.runtime.people.notices:close",
    "notices_complained_at": "ravi_django.runtime.people.notices:_complained_at",
    "notices_hint": "ravi_django.runtime.people.notices:hint",
    "NOTICES_MOST": "ravi_django.runtime.people.notices:MOST",
    "NOTICES_REST_S": "ravi_django.runtime.people.notices:REST_S",
    "SEND_S": "ravi_django.runtime.people.notices:SEND_S",
    "notices_sender": "ravi_django.runtime.people.notices:_sender",
    # openings
    "Credential": "ravi_django.services.openings:Credential",
    "openings_look": "ravi_django.services.openings:look",
    "openings_lost": "ravi_django.services.openings:lost",
    "openings_open": "ravi_django.services.openings:_open",
    "Opening": "ravi_django.services.openings:Opening",
    # own connections
    "OWN_CONNECTIONS_SHAPES": "ravi_django.runtime.db.connections:SHAPES",
    # own thread
    "own_thread_after_fork": "ravi_django.runtime.sources.hanging:_after_fork",
    "Hangs": "ravi_django.runtime.sources.hanging:Hangs",
    "on_own_thread": "ravi_django.runtime.sources.hanging:on_own_thread",
    # owners
    "owners_live": "ravi_django.runtime.lifecycle.deletion:_live",
    # paths
    "paths_current": "ravi_django.runtime.lease.paths:current",
    "paths_entered": "ravi_django.runtime.lease.paths:entered",
    "paths_install": "ravi_django.runtime.lease.paths:install",
    "Scope": "ravi_django.runtime.lease.paths:Scope",
    "paths_scope": "ravi_django.runtime.lease.paths:_scope",
    # pausing
    "resume": "ravi_django.runtime.teams.slots:resume",
    # people
    "answerable": "ravi_django.runtime.people.rights:answerable",
    "people_candidates": "ravi_django.runtime.people.rights:candidates",
    "people_check": "ravi_django.runtime.people.rights:check",
    "could_answer": "ravi_django.runtime.people.rights:could_answer",
    "is_open_to": "ravi_django.runtime.people.rights:is_open_to",
    "means_somebody": "ravi_django.runtime.people.rights:means_somebody",
    "open_among": "ravi_django.runtime.people.rights:open_among",
    "people_visible": "ravi_django.runtime.people.rights:visible",
    # polling
    "polling_parse": "ravi_django.runtime.sources.pollers:parse",
    "POLLING_PARSERS": "ravi_django.runtime.sources.pollers:PARSERS",
    "pollers_by_kind": "ravi_django.runtime.sources.pollers:_pollers",
    "pollers": "ravi_django.runtime.sources.pollers:pollers",
    "register_poller": "ravi_django.runtime.sources.pollers:register_poller",
    "THREAD_S": "ravi_django.runtime.sources.pollers:THREAD_S",
    "WAIT_S": "ravi_django.runtime.sources.pollers:WAIT_S",
    # prices
    "prices_faults": "ravi_django.runtime.model_calls.call:faults",
    # prompt engine
    "PROMPT_ENGINE_FILTERS": "ravi_django.runtime.catalog.prompt_engine:FILTERS",
    "PROMPT_ENGINE_TAGS": "ravi_django.runtime.catalog.prompt_engine:TAGS",
    # prompts
    "PromptTemplate": "ravi_django.runtime.catalog.prompts:PromptTemplate",
    # prune
    "PRUNE_BLOBS": "ravi_django.runtime.lifecycle.prune:BLOBS",
    "DAY_S": "ravi_django.runtime.lifecycle.prune:DAY_S",
    "PRUNE_KINDS": "ravi_django.runtime.lifecycle.prune:KINDS",
    "prune": "ravi_django.runtime.lifecycle.prune:prune",
    "retention": "ravi_django.runtime.lifecycle.prune:retention",
    # publish
    "ARCHIVE_S": "ravi_django.runtime.streams.publisher:ARCHIVE_S",
    "publish_archived": "ravi_django.runtime.streams.republish:archived",
    "publish_internalize": "ravi_django.runtime.streams.republish:internalize",
    "MAX_PAUSE_S": "ravi_django.runtime.streams.publisher:MAX_PAUSE_S",
    "MAX_WAITING": "ravi_django.runtime.streams.publisher:MAX_WAITING",
    "PUBLISH_PAGE": "ravi_django.runtime.streams.republish:PAGE",
    "publish_ended": "ravi_django.runtime.streams.republish:publish_ended",
    "publish_past": "ravi_django.runtime.streams.republish:publish_past",
    "publish_retried": "ravi_django.runtime.streams.republish:publish_retried",
    "Publisher": "ravi_django.runtime.streams.publisher:Publisher",
    "republish": "ravi_django.runtime.streams.republish:republish",
    "PUBLISH_RESERVE": "ravi_django.runtime.streams.publisher:RESERVE",
    "snapshot": "ravi_django.runtime.streams.republish:snapshot",
    # reassignment
    # receiving
    # registry
    "registry_access": "ravi_django.runtime.catalog.registry:_access",
    "agents_by_address": "ravi_django.runtime.catalog.registry:_agents",
    "DEFAULT_ACCESS": "ravi_django.runtime.catalog.registry:DEFAULT_ACCESS",
    "get_agent": "ravi_django.runtime.catalog.registry:get_agent",
    "registry_known": "ravi_django.runtime.catalog.registry:_known",
    "known_addresses": "ravi_django.runtime.catalog.registry:known_addresses",
    "known_tools": "ravi_django.runtime.catalog.registry:known_tools",
    "register": "ravi_django.runtime.catalog.registry:register",
    "register_tool": "ravi_django.runtime.catalog.registry:register_tool",
    "spec_of": "ravi_django.runtime.catalog.registry:spec_of",
    "registry_tools": "ravi_django.runtime.catalog.registry:_tools",
    "unregister": "ravi_django.runtime.catalog.registry:unregister",
    # rehearse
    "live_runs": "ravi_django.runtime.engine.rehearse:live_runs",
    "rehearse": "ravi_django.runtime.engine.rehearse:rehearse",
    # replay
    "check_identity": "ravi_django.runtime.journal.replay:check_identity",
    "STALL_S": "ravi_django.runtime.journal.replay:STALL_S",
    # replies
    "replies_send": "ravi_django.runtime.people.signal_answers:send",
    # requests
    "begin_anew": "ravi_django.runtime.people.requests:begin_anew",
    "requests_new": "ravi_django.runtime.people.requests:new",
    "place_first": "ravi_django.runtime.people.requests:place_first",
    # retry
    "retry": "ravi_django.runtime.lifecycle.retry:retry",
    # scheduler
    "SCHEDULER_BATCH": "ravi_django.runtime.schedules.ticking:BATCH",
    "SCHEDULER_COUNTED": "ravi_django.runtime.schedules.ticking:COUNTED",
    "grace_s": "ravi_django.runtime.schedules.ticking:grace_s",
    "SCHEDULER_MOST": "ravi_django.runtime.schedules.ticking:MOST",
    "PER_SCHEDULE": "ravi_django.runtime.schedules.ticking:PER_SCHEDULE",
    "SCHEDULER_RETRY_S": "ravi_django.runtime.schedules.ticking:RETRY_S",
    "see_to": "ravi_django.runtime.schedules.ticking:see_to",
    "scheduler_take": "ravi_django.runtime.schedules.ticking:take",
    "scheduler_tick": "ravi_django.runtime.schedules.ticking:tick",
    "WITHIN_S": "ravi_django.runtime.schedules.ticking:WITHIN_S",
    # schedules
    "schedules_disable": "ravi_django.runtime.schedules.schedules:disable",
    "schedules_enable": "ravi_django.runtime.schedules.schedules:enable",
    "schedules_keep": "ravi_django.runtime.schedules.schedules:keep",
    "next_ticks": "ravi_django.runtime.schedules.schedules:next_ticks",
    "schedules_remove": "ravi_django.runtime.schedules.schedules:remove",
    "run_now": "ravi_django.runtime.schedules.schedules:run_now",
    "schedules_submit_once": "ravi_django.runtime.schedules.schedules:submit_once",
    # sealed
    "seal": "ravi_django.runtime.sources.secrets:seal",
    # settle
    "settle_write": "ravi_django.runtime.engine.settle:write",
    # shown
    "in_utc": "ravi_django.runtime.streams.shown:in_utc",
    # signals
    "signal": "ravi_django.runtime.runs.signals:signal",
    # site rules
    "site_rules_addressees": "ravi_django.runtime.people.site_rules:addressees",
    # sla
    "sla_figures": "ravi_django.runtime.people.figures:figures",
    "SLA_GROUPS": "ravi_django.runtime.people.figures:GROUPS",
    "sla_totals": "ravi_django.runtime.people.figures:totals",
    # source adapters
    "SOURCE_ADAPTERS_POLL_S": "ravi_django.runtime.sources.pollers:POLL_S",
    # source rules
    "source_rules_faults": "ravi_django.runtime.sources.adding:faults_of",
    "WRITTEN_HERE": "ravi_django.runtime.sources.adding:WRITTEN_HERE",
    # sources
    "AFTER_S": "ravi_django.runtime.sources.poll:AFTER_S",
    "sources_at_work": "ravi_django.runtime.sources.poll:_at_work",
    "BACK_S": "ravi_django.runtime.sources.poll:BACK_S",
    "DB_THREADS": "ravi_django.runtime.sources.poll:DB_THREADS",
    "LEASE_S": "ravi_django.runtime.sources.poll:LEASE_S",
    "sources_log": "ravi_django.runtime.sources.poll:log",
    "SOURCES_LOOK_S": "ravi_django.runtime.sources.poll:LOOK_S",
    "PER_HOST": "ravi_django.runtime.sources.poll:PER_HOST",
    "poll_due": "ravi_django.runtime.sources.poll:poll_due",
    "Polls": "ravi_django.runtime.sources.poll:_Polls",
    "SOURCES_RENEWALS": "ravi_django.runtime.sources.poll:RENEWALS",
    "sources_sweep": "ravi_django.runtime.sources.poll:sweep",
    "sweep_unread": "ravi_django.runtime.sources.poll:sweep_unread",
    "WHOLE_S": "ravi_django.runtime.sources.poll:WHOLE_S",
    # specs
    "build_model": "ravi_django.runtime.catalog.specs:build_model",
    "check_spec": "ravi_django.runtime.catalog.specs:check_spec",
    "specs_find": "ravi_django.runtime.catalog.specs:find",
    "specs_load": "ravi_django.runtime.catalog.specs:load",
    "save_spec": "ravi_django.runtime.catalog.specs:save_spec",
    "uses_litellm": "ravi_django.runtime.catalog.specs:uses_litellm",
    # standing
    "standing_revoke": "ravi_django.runtime.people.standing:revoke",
    # store
    "answer_request": "ravi_django.runtime.people.rows:answer_request",
    "append": "ravi_django.runtime.journal.append:append",
    "append_statement": "ravi_django.runtime.journal.fence:append_statement",
    "claim_link": "ravi_django.runtime.people.links:claim_link",
    "claim_next": "ravi_django.runtime.lease.claims:claim_next",
    "consume_signal": "ravi_django.runtime.lease.waits:consume_signal",
    "deliver_batch": "ravi_django.runtime.social.fan_out:deliver_batch",
    "full_sources": "ravi_django.runtime.sources.unread:full_sources",
    "hand_over": "ravi_django.runtime.lifecycle.generations:hand_over",
    "inbox_after": "ravi_django.runtime.lease.facts:inbox_after",
    "load_with_facts": "ravi_django.runtime.lease.facts:load_with_facts",
    "mark_written": "ravi_django.runtime.people.links:mark_written",
    "open_ask": "ravi_django.runtime.teams.ask_rows:open_ask",
    "open_request": "ravi_django.runtime.people.rows:open_request",
    "owns_runs": "ravi_django.runtime.lifecycle.deletion:owns_runs",
    "put_off": "ravi_django.runtime.sources.rows:put_off",
    "receive": "ravi_django.runtime.lease.inbox:record_received",
    "reply": "ravi_django.runtime.teams.ask_rows:reply",
    "reserve": "ravi_django.runtime.budgets.ledger:reserve",
    "resume_paused": "ravi_django.runtime.teams.slots:resume_paused",
    "send_signal": "ravi_django.runtime.runs.signals:send_signal",
    "some_after": "ravi_django.runtime.lease.facts:some_after",
    "source_failed": "ravi_django.runtime.sources.rows:source_failed",
    "source_polled": "ravi_django.runtime.sources.rows:source_polled",
    "spawn": "ravi_django.runtime.teams.spawn:write_spawn",
    "standing": "ravi_django.runtime.people.standing:standing",
    "suspend": "ravi_django.runtime.engine.settle:suspend",
    "tell": "ravi_django.runtime.sources.telling:tell",
    "told_of": "ravi_django.runtime.lease.inbox:told_of",
    "touch": "ravi_django.runtime.runs.waking:touch",
    "use_link": "ravi_django.runtime.people.links:use_link",
    "wake_silent": "ravi_django.runtime.runs.signals:wake_silent",
    "worker_seen": "ravi_django.runtime.runs.workers:worker_seen",
    # store, accounts
    "accounts_of": "ravi_django.runtime.budgets.accounts:accounts_of",
    "accounts_forget": "ravi_django.runtime.budgets.accounts:forget",
    # store, asking
    "asking_control": "ravi_django.runtime.lifecycle.cancel:record_control",
    "asking_deliver": "ravi_django.runtime.teams.ask_rows:deliver",
    "deliver_to_agent": "ravi_django.runtime.teams.ask_rows:deliver_to_agent",
    "asking_lock": "ravi_django.runtime.teams.ask_rows:lock",
    "NotDue": "ravi_django.runtime.lease.refusals:NotDue",
    "time_out_ask": "ravi_django.runtime.teams.ask_rows:time_out_ask",
    # store, backlog
    "BACKLOG_MOST": "ravi_django.runtime.social.backlog:MOST",
    # store, budgets
    "Amount": "ravi_django.runtime.budgets.ledger:Amount",
    "BUDGETS_CALLS": "ravi_django.runtime.budgets.ledger:CALLS",
    "Exhausted": "ravi_django.runtime.budgets.ledger:Exhausted",
    "free_abandoned": "ravi_django.runtime.budgets.ledger:free_abandoned",
    "BUDGETS_REFUSED": "ravi_django.runtime.budgets.ledger:REFUSED",
    "budgets_settled": "ravi_django.runtime.budgets.ledger:settled",
    # store, claims
    "claim": "ravi_django.runtime.lease.claims:claim",
    "claim_on_postgresql": "ravi_django.runtime.lease.claims:_claim_postgres",
    # store, control
    "request_cancel": "ravi_django.runtime.lifecycle.cancel:request_cancel",
    # store, deliveries
    "DELIVERIES_APART": "ravi_django.runtime.social.deliveries:APART",
    "deliveries_targets": "ravi_django.runtime.social.deliveries:_targets",
    # store, delivery rows
    "delivery_rows_begin": "ravi_django.runtime.social.delivery_rows:begin",
    "delivery_rows_tell": "ravi_django.runtime.social.delivery_rows:tell",
    # store, digests
    "digests_deliver_due": "ravi_django.runtime.social.digests:deliver_due",
    "has_due": "ravi_django.runtime.social.digests:has_due",
    "MOST_ITEMS": "ravi_django.runtime.social.digests:MOST_ITEMS",
    "digests_settle": "ravi_django.runtime.social.digests:_settle",
    "DIGESTS_TRIES": "ravi_django.runtime.social.digests:TRIES",
    # store, endings
    "OWNER_DELETED": "ravi_django.runtime.lifecycle.endings:OWNER_DELETED",
    "TOP_UP": "ravi_django.runtime.journal.outbox:TOP_UP",
    # store, erasures
    "begin_session": "ravi_django.runtime.lifecycle.erasure_rows:begin_session",
    "BODIES_S": "ravi_django.runtime.lifecycle.erasure_rows:BODIES_S",
    "erase_trees": "ravi_django.runtime.lifecycle.erasure_rows:erase_trees",
    "erasures_some": "ravi_django.runtime.lifecycle.erasure_rows:_some",
    # store, escalations
    "due_to_escalate": "ravi_django.runtime.people.escalation:due_to_escalate",
    "escalate": "ravi_django.runtime.people.escalation:escalate",
    # store, fan out
    "FAN_OUT_BATCH_BYTES": "ravi_django.runtime.social.fan_out:BATCH_BYTES",
    "fan_out_set_all_aside": "ravi_django.runtime.social.fan_out:_set_all_aside",
    "fan_out_told_at_home": "ravi_django.runtime.social.fan_out:_told_at_home",
    "fan_out_unfinished": "ravi_django.runtime.social.fan_out:unfinished",
    # store, fence
    "fence_append": "ravi_django.runtime.journal.fence:append",
    "fence_execute": "ravi_django.runtime.journal.fence:_execute",
    "MAX_ROWS": "ravi_django.runtime.journal.fence:MAX_ROWS",
    "Statement": "ravi_django.runtime.journal.fence:Statement",
    # store, followers
    "being_changed": "ravi_django.runtime.social.followers:being_changed",
    # store, follows
    "add_follow": "ravi_django.runtime.social.follow_rows:add_follow",
    "delete_follows": "ravi_django.runtime.social.follow_rows:delete_follows",
    "follower_of": "ravi_django.runtime.social.follow_rows:follower_of",
    "follows_known": "ravi_django.runtime.social.follow_rows:known",
    "FOLLOWS_PAGE": "ravi_django.runtime.social.follow_rows:PAGE",
    # store, fork
    "store_fork": "ravi_django.runtime.lifecycle.fork:write_fork",
    # store, generations
    "continue_as_new": "ravi_django.runtime.lifecycle.generations:continue_as_new",
    # store, handing over
    "handing_over_is_occupied": "ravi_django.runtime.lifecycle.generations:_is_occupied",
    # store, homes
    "homes_look": "ravi_django.runtime.social.deliveries:_look",
    # store, hook secrets
    "secrets_of": "ravi_django.runtime.sources.secrets:secrets_of",
    # store, inboxes
    "INBOXES_CARRIED": "ravi_django.runtime.lease.facts:CARRIED",
    # store, journal
    "journal_block": "ravi_django.runtime.engine.settle:block",
    "finish": "ravi_django.runtime.lifecycle.endings:finish",
    "requeue": "ravi_django.runtime.engine.settle:requeue",
    "save_blobs": "ravi_django.runtime.journal.append:save_blobs",
    "store_big_values": "ravi_django.runtime.journal.append:store_big_values",
    "Unseen": "ravi_django.runtime.lifecycle.endings:Unseen",
    # store, leases
    "claimable": "ravi_django.runtime.lease.claims:claimable",
    "heartbeat": "ravi_django.runtime.lease.claims:heartbeat",
    "Lease": "ravi_django.runtime.journal.fence:Lease",
    "leases_load": "ravi_django.runtime.lease.facts:load",
    "LEASES_LOCK_S": "ravi_django.runtime.lease.claims:LOCK_S",
    # store, links
    "make_links": "ravi_django.runtime.people.links:make_links",
    "LINKS_TRIES": "ravi_django.runtime.people.links:TRIES",
    "links_unwritten": "ravi_django.runtime.people.links:unwritten",
    # store, names
    "NAMES_ROWS": "ravi_django.runtime.lifecycle.names:ROWS",
    # store, outbox
    "outbox_body": "ravi_django.runtime.journal.outbox:body",
    "of_crash": "ravi_django.runtime.journal.outbox:of_crash",
    "of_request": "ravi_django.runtime.journal.outbox:of_request",
    "OUTBOX_TOPIC": "ravi_django.runtime.journal.outbox:TOPIC",
    "outbox_write": "ravi_django.runtime.journal.outbox:write",
    # store, outbox rows
    "AGAIN_S": "ravi_django.runtime.events.outbox_rows:AGAIN_S",
    "outbox_rows_alone": "ravi_django.runtime.events.outbox_rows:alone",
    "outbox_rows_backlog": "ravi_django.runtime.events.outbox_rows:backlog",
    "outbox_rows_forget": "ravi_django.runtime.events.outbox_rows:forget",
    "is_empty": "ravi_django.runtime.events.outbox_rows:is_empty",
    "outbox_rows_refused": "ravi_django.runtime.events.outbox_rows:refused",
    "OUTBOX_ROWS": "ravi_django.runtime.events.outbox_rows:ROWS",
    "OUTBOX_ROWS_TRIES": "ravi_django.runtime.events.outbox_rows:TRIES",
    "outbox_rows_waiting": "ravi_django.runtime.events.outbox_rows:waiting",
    # store, people
    "expire_request": "ravi_django.runtime.people.rows:expire_request",
    "people_forget_earlier": "ravi_django.runtime.people.rows:forget_earlier",
    "TooManyRequests": "ravi_django.runtime.lease.refusals:TooManyRequests",
    "write_request": "ravi_django.runtime.people.rows:write_request",
    # store, personal
    "PERSONAL_OTHERS": "ravi_django.runtime.lifecycle.personal:OTHERS",
    "PERSONAL_TABLES": "ravi_django.runtime.lifecycle.personal:TABLES",
    # store, postgres
    "postgres_execute": "ravi_django.runtime.db.postgres:execute",
    # store, processes
    "due_for_hint": "ravi_django.runtime.runs.workers:due_for_hint",
    "forget_dead_workers": "ravi_django.runtime.runs.workers:forget_dead_workers",
    "worker_swept": "ravi_django.runtime.runs.workers:swept",
    "refresh_daily": "ravi_django.runtime.budgets.accounts:refresh",
    "silent": "ravi_django.runtime.runs.signals:silent",
    "processes_swept": "ravi_django.runtime.runs.workers:swept",
    "worker_gone": "ravi_django.runtime.runs.workers:worker_gone",
    # store, prune
    "prune_delete": "ravi_django.runtime.lifecycle.prune_rows:_delete",
    "forget_archives": "ravi_django.runtime.lifecycle.prune_rows:forget_archives",
    "prune_frames": "ravi_django.runtime.lifecycle.prune_rows:frames",
    "journal_rows": "ravi_django.runtime.lifecycle.prune_rows:journal_rows",
    "prune_blobs": "ravi_django.runtime.lifecycle.prune_rows:prune_blobs",
    "prune_trees": "ravi_django.runtime.lifecycle.prune_rows:prune_trees",
    "PRUNE_ROWS": "ravi_django.runtime.lifecycle.prune_rows:ROWS",
    "PRUNE_TREES": "ravi_django.runtime.lifecycle.prune_rows:TREES",
    "unreferenced_blobs": "ravi_django.runtime.lifecycle.prune_rows:unreferenced_blobs",
    # store, publications
    "create_publication": "ravi_django.runtime.social.publications:create_publication",
    "PUBLICATIONS_ROWS": "ravi_django.runtime.social.publications:ROWS",
    "scope_of": "ravi_django.runtime.social.publications:scope_of",
    # store, queue
    "create_run": "ravi_django.runtime.runs.sessions:create_run",
    "create_session": "ravi_django.runtime.runs.sessions:create_session",
    "queue_orphans": "ravi_django.runtime.runs.sessions:orphans",
    "promote_orphan": "ravi_django.runtime.runs.sessions:promote_orphan",
    # store, records
    "records_record": "ravi_django.runtime.people.records:record",
    "records_tell": "ravi_django.runtime.people.records:tell",
    # store, retry
    "store_retry": "ravi_django.runtime.lifecycle.retry:write_retry",
    # store, saves
    "heard": "ravi_django.runtime.sources.saves:heard",
    "with_untold": "ravi_django.runtime.sources.saves:with_untold",
    # store, schedules
    "schedules_advance": "ravi_django.runtime.schedules.rows:advance",
    "store_schedules_due": "ravi_django.runtime.schedules.rows:_due",
    "schedules_due": "ravi_django.runtime.schedules.rows:due",
    "schedules_present": "ravi_django.runtime.schedules.rows:present",
    "read_due": "ravi_django.runtime.schedules.rows:read_due",
    "schedules_record": "ravi_django.runtime.schedules.rows:record",
    "schedules_seen": "ravi_django.runtime.schedules.rows:seen",
    # store, slots
    "slots_live": "ravi_django.runtime.teams.slots:live",
    "slots_resume": "ravi_django.runtime.teams.slots:lift_pause",
    # store, source items
    "A_DAY": "ravi_django.runtime.sources.items:A_DAY",
    "SOURCE_ITEMS_ROWS": "ravi_django.runtime.sources.items:ROWS",
    # store, sources
    "any_source_due": "ravi_django.runtime.sources.rows:any_source_due",
    "claim_sources": "ravi_django.runtime.sources.rows:claim_sources",
    "renew_sources": "ravi_django.runtime.sources.rows:renew_sources",
    # store, spawning
    "make_child": "ravi_django.runtime.teams.spawn:make_child",
    # store, standing
    "revoke_standing": "ravi_django.runtime.people.standing:revoke_standing",
    # store, streams
    "mark_many_published": "ravi_django.runtime.streams.archive:mark_many_published",
    "mark_published": "ravi_django.runtime.streams.archive:mark_published",
    "reserve_events": "ravi_django.runtime.streams.archive:reserve_events",
    "unpublished": "ravi_django.runtime.streams.archive:unpublished",
    # store, telling
    "telling_carry": "ravi_django.runtime.sources.telling:carry",
    "TELLING_GONE": "ravi_django.runtime.sources.telling:GONE",
    "tell_unread": "ravi_django.runtime.sources.telling:tell_unread",
    "Told": "ravi_django.runtime.sources.telling:Told",
    "TELLING_UNREAD": "ravi_django.runtime.sources.telling:UNREAD",
    "UNREAD_S": "ravi_django.runtime.sources.telling:UNREAD_S",
    # store, topups
    "answer_top_up": "ravi_django.runtime.people.top_ups:answer_top_up",
    "open_top_up": "ravi_django.runtime.people.top_ups:open_top_up",
    # store, touching
    "touching_lock": "ravi_django.runtime.runs.waking:lock",
    # store, unread
    "is_full": "ravi_django.runtime.sources.unread:is_full",
    "left_unread": "ravi_django.runtime.sources.unread:left_unread",
    # store, waiting
    "Facts": "ravi_django.runtime.lease.facts:Facts",
    "waiting_facts": "ravi_django.runtime.lease.facts:facts",
    "waiting_silent": "ravi_django.runtime.runs.signals:silent",
    # submit
    "submit_message": "ravi_django.runtime.runs.checks:message_of",
    "submit": "ravi_django.runtime.runs.submit:submit",
    "submit_once": "ravi_django.runtime.runs.submit:submit_once",
    # sweeper
    "SWEEPER_BATCH": "ravi_django.runtime.engine.sweep:BATCH",
    "sweeper_erasing": "ravi_django.runtime.engine.sweep:erasing",
    "sweeper_fan_out": "ravi_django.runtime.engine.sweep:fan_out",
    "SWEEPER_LOCK": "ravi_django.runtime.engine.sweep:_LOCK",
    "sweeper_mail": "ravi_django.runtime.engine.sweep:mail",
    "sweeper_relay": "ravi_django.runtime.engine.sweep:relay",
    "sweeper_model_sources": "ravi_django.runtime.engine.sweep:saves",
    "sweeper_scheduler": "ravi_django.runtime.engine.sweep:ticking",
    "sweeper_sources": "ravi_django.runtime.engine.sweep:poll",
    "sweeper_sweep": "ravi_django.runtime.engine.sweep:sweep",
    # tickets
    "tickets_issue": "ravi_django.services.tickets:issue",
    "tickets_take": "ravi_django.services.tickets:take",
    # ticks
    "check_cron": "ravi_django.runtime.schedules.timetable:check_cron",
    "Timetable": "ravi_django.runtime.schedules.timetable:Timetable",
    "zone_of": "ravi_django.runtime.schedules.timetable:zone_of",
    "TicksZoneInfo": "ravi_django.runtime.schedules.timetable:ZoneInfo",
    # tool caps
    "Spent": "ravi_django.runtime.lease.caps:Spent",
    "Stopwatch": "ravi_django.runtime.lease.caps:Stopwatch",
    "tool_caps_time": "ravi_django.runtime.lease.caps:time",
    # tool pauses
    "MAX_PAUSES": "ravi_django.runtime.tools.pauses:MAX_PAUSES",
    # tool promises
    "tool_promises_on_a_thread": "ravi_django.runtime.tools.promises:on_a_thread",
    # tool results
    "is_small": "ravi_django.runtime.tools.results:is_small",
    "MAX_ITEMS": "ravi_django.runtime.tools.results:MAX_ITEMS",
    "result_of": "ravi_django.runtime.tools.results:result_of",
    "tool_results_words": "ravi_django.capabilities.llm.errors:words",
    # tool running
    "tool_running_connections": "ravi_django.runtime.tools.running:connections",
    "GRACE_S": "ravi_django.runtime.tools.running:GRACE_S",
    # tool threads
    "tool_threads_hanging": "ravi_django.runtime.tools.threads:hanging",
    "LOST_PER_THREAD": "ravi_django.runtime.tools.threads:LOST_PER_THREAD",
    "ToolThreads": "ravi_django.runtime.tools.threads:ToolThreads",
    # tools, ask human
    "AskHumanTool": "ravi_django.runtime.tools.builtin.ask_human:AskHumanTool",
    # tools, board
    "TaskBoard": "ravi_django.runtime.tools.builtin.board:TaskBoard",
    # tools, queryset
    "QuerysetTool": "ravi_django.runtime.tools.builtin.queryset:QuerysetTool",
    # tools, results
    "results_aligned": "ravi_django.runtime.tools.builtin.read_result:_aligned",
    "results_blob": "ravi_django.runtime.tools.builtin.read_result:_blob",
    "results_found": "ravi_django.runtime.tools.builtin.read_result:_found",
    "MAX_FOUND": "ravi_django.runtime.tools.builtin.read_result:MAX_FOUND",
    "results_part": "ravi_django.runtime.tools.builtin.read_result:_part",
    "ReadResultTool": "ravi_django.runtime.tools.builtin.read_result:ReadResultTool",
    "RESULTS_STEP": "ravi_django.runtime.tools.builtin.read_result:_STEP",
    # webhooks
    "forget_old_secret": "ravi_django.runtime.sources.webhooks:forget_old_secret",
    "make_secret": "ravi_django.runtime.sources.webhooks:make_secret",
    "webhooks_parsed": "ravi_django.runtime.sources.webhooks:_parsed",
    "path_of": "ravi_django.runtime.sources.webhooks:path_of",
    # worker
    "close_worker": "ravi_django.runtime.engine.worker:close_worker",
    "get_worker": "ravi_django.runtime.engine.worker:get_worker",
    "Worker": "ravi_django.runtime.engine.worker:Worker",
    "current_worker": "ravi_django.runtime.engine.worker:_worker",
    # tasks
    "tasks_serves": "ravi_django.tasks:_serves",
    "tasks_start": "ravi_django.tasks:_start",
    "tasks_stop_claiming": "ravi_django.tasks:_stop_claiming",
    # tools
    "TOOLS_EXPORTS": "ravi_django.tools:_EXPORTS",
    # ws, consumer
    "consumer_submit": "ravi_django.ws.consumer:_submit",
    # ws, hints
    "hints_hubs": "ravi_django.ws.hints:_hubs",
}


def place_of(verb: str) -> tuple[Any, str]:
    """The module and the name in it that `verb` stands for; without a name, the module itself."""
    if verb not in VERBS:
        raise AttributeError(f"Unknown verb {verb!r}: add it to ravi_django/testing/_verbs.py.")
    module, _, name = VERBS[verb].partition(":")
    return import_module(module), name


def __getattr__(verb: str) -> Any:
    module, name = place_of(verb)
    return getattr(module, name) if name else module

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
    "loop_deliver": "ravi_django.agents._loop:deliver",
    "drop_turns": "ravi_django.agents._loop:drop_turns",
    "final_text": "ravi_django.agents._loop:final_text",
    "load_history": "ravi_django.agents._loop:load_history",
    "message_to_chat": "ravi_django.agents._loop:message_to_chat",
    "persist_turns": "ravi_django.agents._loop:persist_turns",
    "summarize": "ravi_django.agents._loop:summarize",
    # agents, task
    "task_agent_id": "ravi_django.agents._task:_task_agent_id",
    "task_agent_label": "ravi_django.agents._task:_task_agent_label",
    "task_ctx": "ravi_django.agents._task:_task_ctx",
    "task_may_summarize": "ravi_django.agents._task:_task_may_summarize",
    "task_model": "ravi_django.agents._task:_task_model",
    "task_parent_agent_id": "ravi_django.agents._task:_task_parent_agent_id",
    "task_run_id": "ravi_django.agents._task:_task_run_id",
    "task_thread_id": "ravi_django.agents._task:_task_thread_id",
    # agents, compaction, tokens
    "TOKENS_TURN_S": "ravi_django.agents.compaction.tokens:_TURN_S",
    # agents, dangling
    "close_dangling": "ravi_django.agents.dangling:close_dangling",
    "DANGLING_INTERRUPTED": "ravi_django.agents.dangling:INTERRUPTED",
    # agents, personal feed
    "PERSONAL_FEED_PREFER": "ravi_django.agents.personal_feed:_PREFER",
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
    # migrations, live
    "AddIndex": "ravi_django.migrations._live:AddIndex",
    "AddUnique": "ravi_django.migrations._live:AddUnique",
    "AlterDbIndex": "ravi_django.migrations._live:AlterDbIndex",
    "AlterField": "ravi_django.migrations._live:AlterField",
    "LIVE_LOCK_S": "ravi_django.migrations._live:LOCK_S",
    "LIVE_TRIES": "ravi_django.migrations._live:TRIES",
    # models, ids
    "ids_last": "ravi_django.models.ids:_last",
    # adding sources
    "add_source": "ravi_django.runtime.adding_sources:add_source",
    # addresses
    "addresses_get_user_model": "ravi_django.runtime.addresses:get_user_model",
    "of_users": "ravi_django.runtime.addresses:of_users",
    "ADDRESSES_READ": "ravi_django.runtime.addresses:READ",
    "users_at": "ravi_django.runtime.addresses:users_at",
    # answers
    "EVERY_ACTION": "ravi_django.runtime.answers:EVERY_ACTION",
    # appending
    "append_repeatable": "ravi_django.runtime.appending:append_repeatable",
    "Appender": "ravi_django.runtime.appending:Appender",
    "LoopConnection": "ravi_django.runtime.appending:LoopConnection",
    "APPENDING_REST_S": "ravi_django.runtime.appending:REST_S",
    # archive
    "archive": "ravi_django.runtime.archive:archive",
    # background
    "background_hint": "ravi_django.runtime.background:hint",
    "background_lock": "ravi_django.runtime.background:_lock",
    "background_stop": "ravi_django.runtime.background:stop",
    # backoff
    "delay_s": "ravi_django.runtime.backoff:delay_s",
    # board
    "board_add": "ravi_django.runtime.board:add",
    "board_last_number": "ravi_django.runtime.board:_last_number",
    "MAX_ALL": "ravi_django.runtime.board:MAX_ALL",
    "MAX_TASKS": "ravi_django.runtime.board:MAX_TASKS",
    "Place": "ravi_django.runtime.board:Place",
    "board_shown": "ravi_django.runtime.board:shown",
    "board_update": "ravi_django.runtime.board:update",
    # bodies
    "bodies_forget": "ravi_django.runtime.bodies:forget",
    "bodies_keep": "ravi_django.runtime.bodies:keep",
    # branches
    "Branches": "ravi_django.runtime.branches:Branches",
    # admission
    "budgets_estimate": "ravi_django.runtime.admission:_estimate",
    "budgets_forget": "ravi_django.runtime.admission:forget",
    "budgets_largest": "ravi_django.runtime.admission:_largest",
    # buffer
    "Batch": "ravi_django.runtime.buffer:Batch",
    "get_buffer": "ravi_django.runtime.buffer:get_buffer",
    "Lost": "ravi_django.runtime.buffer:Lost",
    "MarkReached": "ravi_django.runtime.buffer:MarkReached",
    "stream_url": "ravi_django.runtime.buffer:stream_url",
    # buffer database
    "DatabaseBuffer": "ravi_django.runtime.buffer_database:DatabaseBuffer",
    # buffer valkey
    "BUFFER_VALKEY_POLL_S": "ravi_django.runtime.buffer_valkey:POLL_S",
    "ValkeyBuffer": "ravi_django.runtime.buffer_valkey:ValkeyBuffer",
    # bus, base
    "Bus": "ravi_django.runtime.bus.base:Bus",
    "BASE_DEAD": "ravi_django.runtime.bus.base:DEAD",
    "BASE_EVENTS": "ravi_django.runtime.bus.base:EVENTS",
    "HANDLER_S": "ravi_django.runtime.bus.base:HANDLER_S",
    "NOT_YET_S": "ravi_django.runtime.bus.base:NOT_YET_S",
    "NotYet": "ravi_django.runtime.bus.base:NotYet",
    "Relayed": "ravi_django.runtime.bus.base:Relayed",
    "BASE_RETRY_S": "ravi_django.runtime.bus.base:RETRY_S",
    "BASE_TRIES": "ravi_django.runtime.bus.base:TRIES",
    # bus, courier
    "courier_hint": "ravi_django.runtime.bus.courier:hint",
    "IDLE_S": "ravi_django.runtime.bus.courier:IDLE_S",
    "courier_join": "ravi_django.runtime.bus.courier:join",
    "courier_lock": "ravi_django.runtime.bus.courier:_lock",
    "courier_send": "ravi_django.runtime.bus.courier:_send",
    "courier_thread": "ravi_django.runtime.bus.courier:_thread",
    "courier_time": "ravi_django.runtime.bus.courier:time",
    "courier_wake": "ravi_django.runtime.bus.courier:_wake",
    # bus, member
    "FORGET_S": "ravi_django.runtime.bus.member:FORGET_S",
    # bus, memory
    "MEMORY_KEPT": "ravi_django.runtime.bus.memory:KEPT",
    "MemoryBus": "ravi_django.runtime.bus.memory:MemoryBus",
    # bus, outgoing
    "enqueue": "ravi_django.runtime.bus.outgoing:enqueue",
    # bus, relay
    "RELAY_BATCH": "ravi_django.runtime.bus.relay:BATCH",
    "RELAY_BATCH_BYTES": "ravi_django.runtime.bus.relay:BATCH_BYTES",
    "relay_event": "ravi_django.runtime.bus.relay:_event",
    "relay_one_here": "ravi_django.runtime.bus.relay:_one_here",
    "relay": "ravi_django.runtime.bus.relay:relay",
    "relay_safely": "ravi_django.runtime.bus.relay:relay_safely",
    "RELAY_REST_S": "ravi_django.runtime.bus.relay:REST_S",
    "relay_rests_until": "ravi_django.runtime.bus.relay:_rests_until",
    # bus, site
    "forget_buses": "ravi_django.runtime.bus.site:forget_buses",
    "get_bus": "ravi_django.runtime.bus.site:get_bus",
    # bus, valkey
    "ValkeyBus": "ravi_django.runtime.bus.valkey:ValkeyBus",
    # bus feed
    "feed_agent": "ravi_django.runtime.bus_feed:feed_agent",
    # cancel
    "cancel": "ravi_django.runtime.cancel:cancel",
    # catalog
    "sync_after_migrate": "ravi_django.runtime.catalog:sync_after_migrate",
    "sync_agents": "ravi_django.runtime.catalog:sync_agents",
    # clock
    "clock_after": "ravi_django.runtime.clock:after",
    "clock_fixed": "ravi_django.runtime.clock:fixed",
    "now": "ravi_django.runtime.clock:now",
    # context
    "current_context": "ravi_django.runtime.state:current_context",
    "DurableContext": "ravi_django.runtime.context:DurableContext",
    # database
    "CLOSE_S": "ravi_django.runtime.database:CLOSE_S",
    "DatabaseThreads": "ravi_django.runtime.database:DatabaseThreads",
    "forget_readers": "ravi_django.runtime.database:forget_readers",
    "DATABASE_REPEAT_S": "ravi_django.runtime.database:REPEAT_S",
    "DATABASE_RETRY_S": "ravi_django.runtime.database:RETRY_S",
    "with_retry": "ravi_django.runtime.database:with_retry",
    # decisions
    "decisions_decided": "ravi_django.runtime.decisions:decided",
    "decisions_told": "ravi_django.runtime.decisions:told",
    # dispatch
    "DISPATCH_ANSWER_S": "ravi_django.runtime.dispatch:ANSWER_S",
    "broker_connection": "ravi_django.runtime.dispatch:broker_connection",
    "CONNECT_S": "ravi_django.runtime.dispatch:CONNECT_S",
    "dispatch_down_until": "ravi_django.runtime.dispatch:_down_until",
    "on_commit": "ravi_django.runtime.dispatch:on_commit",
    "dispatch_pools": "ravi_django.runtime.dispatch:_pools",
    "dispatch_publish": "ravi_django.runtime.dispatch:publish",
    "DISPATCH_REST_S": "ravi_django.runtime.dispatch:REST_S",
    "dispatch_send": "ravi_django.runtime.dispatch:send",
    "send_many": "ravi_django.runtime.dispatch:send_many",
    # drops
    "AT_ONCE_BYTES": "ravi_django.runtime.drops:AT_ONCE_BYTES",
    "drops_look": "ravi_django.runtime.drops:_look",
    "drops_put_aside": "ravi_django.runtime.drops:_put_aside",
    # effects
    "EFFECTS_REPEAT_S": "ravi_django.runtime.effects:REPEAT_S",
    # engine
    "Active": "ravi_django.runtime.engine:Active",
    "Engine": "ravi_django.runtime.engine:Engine",
    "EnginePublisher": "ravi_django.runtime.engine:Publisher",
    # entries
    "BLOB_KEY": "ravi_django.runtime.entries:BLOB_KEY",
    "blob_value": "ravi_django.runtime.entries:blob_value",
    "entries_encode": "ravi_django.runtime.entries:encode",
    "Entry": "ravi_django.runtime.entries:Entry",
    "make_blob": "ravi_django.runtime.entries:make_blob",
    "make_text_blob": "ravi_django.runtime.entries:make_text_blob",
    "NewTurn": "ravi_django.runtime.entries:NewTurn",
    "ENTRIES_SCHEMA": "ravi_django.runtime.entries:SCHEMA",
    # erasing
    "delete_session": "ravi_django.runtime.erasing:delete_session",
    "erasing_sweep": "ravi_django.runtime.erasing:sweep",
    "ERASING_SWEPT": "ravi_django.runtime.erasing:SWEPT",
    "erasing_work": "ravi_django.runtime.erasing:work",
    # events
    "events_archived": "ravi_django.runtime.events:archived",
    "events_follow": "ravi_django.runtime.events:follow",
    "follow_topic": "ravi_django.runtime.events:follow_topic",
    "events_get_buffer": "ravi_django.runtime.events:get_buffer",
    "events_page": "ravi_django.runtime.events:page",
    "EVENTS_PROGRESS": "ravi_django.runtime.events:PROGRESS",
    # fan out
    "FAN_OUT_BATCHES": "ravi_django.runtime.fan_out:BATCHES",
    "deliver_due": "ravi_django.runtime.fan_out:deliver_due",
    "FAN_OUT_FEW": "ravi_django.runtime.fan_out:FEW",
    "fan_out_hint": "ravi_django.runtime.fan_out:hint",
    "fan_out_run": "ravi_django.runtime.fan_out:run",
    "fan_out_sweep": "ravi_django.runtime.fan_out:sweep",
    "fan_out_wake": "ravi_django.runtime.fan_out:wake",
    # follow
    "emit": "ravi_django.runtime.follow:emit",
    "follow": "ravi_django.runtime.follow:follow",
    "followers": "ravi_django.runtime.follow:followers",
    "MAX_HOPS": "ravi_django.runtime.follow:MAX_HOPS",
    # fork
    "fork": "ravi_django.runtime.fork:fork",
    # frames
    "collapse": "ravi_django.runtime.frames:collapse",
    "frames_delta": "ravi_django.runtime.frames:delta",
    "frames_durable": "ravi_django.runtime.frames:durable",
    "Frame": "ravi_django.runtime.frames:Frame",
    "Source": "ravi_django.runtime.frames:Source",
    "stream_done": "ravi_django.runtime.frames:stream_done",
    # gate
    "gate_datetime": "ravi_django.runtime.gate:datetime",
    "FOREIGN_S": "ravi_django.runtime.gate:FOREIGN_S",
    "GATE_LOOK_S": "ravi_django.runtime.gate:LOOK_S",
    # health
    "ANSWER_S": "ravi_django.runtime.health:ANSWER_S",
    "Check": "ravi_django.runtime.health:Check",
    "check_all": "ravi_django.runtime.health:check_all",
    "event_bus": "ravi_django.runtime.health:event_bus",
    "health_events": "ravi_django.runtime.health:events",
    "LIMIT_S": "ravi_django.runtime.health:LIMIT_S",
    "health_sweep": "ravi_django.runtime.health:sweep",
    "Unhealthy": "ravi_django.runtime.health:Unhealthy",
    "health_worker": "ravi_django.runtime.health:worker",
    # heartbeat
    "Heartbeat": "ravi_django.runtime.heartbeat:Heartbeat",
    # history
    "history_append": "ravi_django.runtime.history:_append",
    "DjangoHistoryProvider": "ravi_django.runtime.history:DjangoHistoryProvider",
    "history_read": "ravi_django.runtime.history:read",
    "read_window": "ravi_django.runtime.history:read_window",
    # human
    "answer": "ravi_django.runtime.human:answer",
    "human_cancel": "ravi_django.runtime.human:cancel",
    "reassign": "ravi_django.runtime.human:reassign",
    "human_resolve": "ravi_django.runtime.human:resolve",
    # inprocess
    "Runtime": "ravi_django.runtime.inprocess:Runtime",
    # letters
    "MOST_SUBJECT": "ravi_django.runtime.letters:MOST_SUBJECT",
    "title_of": "ravi_django.runtime.letters:title_of",
    # limits
    "close_one": "ravi_django.runtime.limits:close_one",
    "limits_count": "ravi_django.runtime.limits:count",
    "limits_limit": "ravi_django.runtime.limits:limit",
    "open_one": "ravi_django.runtime.limits:open_one",
    "OPEN_S": "ravi_django.runtime.limits:OPEN_S",
    "limits_take": "ravi_django.runtime.limits:take",
    # links
    "id_of": "ravi_django.runtime.links:id_of",
    "token_of": "ravi_django.runtime.links:token_of",
    # mail
    "MAIL_BATCH": "ravi_django.runtime.mail:BATCH",
    "mail_connection": "ravi_django.runtime.mail:_connection",
    "mail_hint": "ravi_django.runtime.mail:hint",
    "mail_letter_to": "ravi_django.runtime.mail:letter_to",
    "on_request": "ravi_django.runtime.mail:on_request",
    "mail_rests_until": "ravi_django.runtime.mail:_rests_until",
    "mail_send": "ravi_django.runtime.mail:send",
    "mail_site_connection": "ravi_django.runtime.mail:_site_connection",
    "SMTP_TIMEOUT_S": "ravi_django.runtime.mail:SMTP_TIMEOUT_S",
    "mail_sweep": "ravi_django.runtime.mail:sweep",
    # middleware, audit log
    "audit_log_write_audit": "ravi_django.runtime.middleware.audit_log:write_audit",
    # middleware, rate limit
    "RATE_LIMIT_LOOK_BACK": "ravi_django.runtime.middleware.rate_limit:_LOOK_BACK",
    # middleware, response cache
    "TIMEOUT_S": "ravi_django.runtime.middleware.response_cache:TIMEOUT_S",
    # model sources
    "connect": "ravi_django.runtime.model_sources:connect",
    "model_sources_declared": "ravi_django.runtime.model_sources:_declared",
    "DECLARED_S": "ravi_django.runtime.model_sources:DECLARED_S",
    "model_sources_faults": "ravi_django.runtime.model_sources:faults",
    "field_faults": "ravi_django.runtime.model_sources:field_faults",
    "model_sources_forget": "ravi_django.runtime.model_sources:_forget",
    "LATE_S": "ravi_django.runtime.model_sources:LATE_S",
    "named_models": "ravi_django.runtime.model_sources:named_models",
    "model_sources_note_save": "ravi_django.runtime.model_sources:note_save",
    "model_sources_read": "ravi_django.runtime.model_sources:_read",
    "model_sources_run": "ravi_django.runtime.model_sources:run",
    "model_sources_sources_of": "ravi_django.runtime.model_sources:_sources_of",
    "model_sources_sweep": "ravi_django.runtime.model_sources:sweep",
    # notices
    "notices_close": "ravi_django.runtime.notices:close",
    "notices_complained_at": "ravi_django.runtime.notices:_complained_at",
    "notices_hint": "ravi_django.runtime.notices:hint",
    "NOTICES_MOST": "ravi_django.runtime.notices:MOST",
    "NOTICES_REST_S": "ravi_django.runtime.notices:REST_S",
    "SEND_S": "ravi_django.runtime.notices:SEND_S",
    "notices_sender": "ravi_django.runtime.notices:_sender",
    # openings
    "Credential": "ravi_django.runtime.openings:Credential",
    "openings_look": "ravi_django.runtime.openings:look",
    "openings_lost": "ravi_django.runtime.openings:lost",
    "openings_open": "ravi_django.runtime.openings:_open",
    "Opening": "ravi_django.runtime.openings:Opening",
    # own connections
    "OWN_CONNECTIONS_SHAPES": "ravi_django.runtime.own_connections:SHAPES",
    # own thread
    "own_thread_after_fork": "ravi_django.runtime.own_thread:_after_fork",
    "Hangs": "ravi_django.runtime.own_thread:Hangs",
    "on_own_thread": "ravi_django.runtime.own_thread:on_own_thread",
    # owners
    "owners_live": "ravi_django.runtime.owners:_live",
    # paths
    "paths_current": "ravi_django.runtime.paths:current",
    "paths_entered": "ravi_django.runtime.paths:entered",
    "paths_install": "ravi_django.runtime.paths:install",
    "Scope": "ravi_django.runtime.paths:Scope",
    "paths_scope": "ravi_django.runtime.paths:_scope",
    # pausing
    "resume": "ravi_django.runtime.pausing:resume",
    # people
    "answerable": "ravi_django.runtime.people:answerable",
    "people_candidates": "ravi_django.runtime.people:candidates",
    "people_check": "ravi_django.runtime.people:check",
    "could_answer": "ravi_django.runtime.people:could_answer",
    "is_open_to": "ravi_django.runtime.people:is_open_to",
    "means_somebody": "ravi_django.runtime.people:means_somebody",
    "open_among": "ravi_django.runtime.people:open_among",
    "people_visible": "ravi_django.runtime.people:visible",
    # polling
    "polling_parse": "ravi_django.runtime.polling:parse",
    "POLLING_PARSERS": "ravi_django.runtime.polling:PARSERS",
    "pollers_by_kind": "ravi_django.runtime.polling:_pollers",
    "pollers": "ravi_django.runtime.polling:pollers",
    "register_poller": "ravi_django.runtime.polling:register_poller",
    "THREAD_S": "ravi_django.runtime.polling:THREAD_S",
    "WAIT_S": "ravi_django.runtime.polling:WAIT_S",
    # prices
    "prices_faults": "ravi_django.runtime.prices:faults",
    # prompt engine
    "PROMPT_ENGINE_FILTERS": "ravi_django.runtime.prompt_engine:FILTERS",
    "PROMPT_ENGINE_TAGS": "ravi_django.runtime.prompt_engine:TAGS",
    # prompts
    "PromptTemplate": "ravi_django.runtime.prompts:PromptTemplate",
    # prune
    "PRUNE_BLOBS": "ravi_django.runtime.prune:BLOBS",
    "DAY_S": "ravi_django.runtime.prune:DAY_S",
    "PRUNE_KINDS": "ravi_django.runtime.prune:KINDS",
    "prune": "ravi_django.runtime.prune:prune",
    "retention": "ravi_django.runtime.prune:retention",
    # publish
    "ARCHIVE_S": "ravi_django.runtime.publish:ARCHIVE_S",
    "publish_archived": "ravi_django.runtime.publish:archived",
    "publish_get_buffer": "ravi_django.runtime.publish:get_buffer",
    "publish_internalize": "ravi_django.runtime.publish:internalize",
    "MAX_PAUSE_S": "ravi_django.runtime.publish:MAX_PAUSE_S",
    "MAX_WAITING": "ravi_django.runtime.publish:MAX_WAITING",
    "PUBLISH_PAGE": "ravi_django.runtime.publish:PAGE",
    "publish_ended": "ravi_django.runtime.publish:publish_ended",
    "publish_past": "ravi_django.runtime.publish:publish_past",
    "publish_retried": "ravi_django.runtime.publish:publish_retried",
    "Publisher": "ravi_django.runtime.publish:Publisher",
    "republish": "ravi_django.runtime.publish:republish",
    "PUBLISH_RESERVE": "ravi_django.runtime.publish:RESERVE",
    "snapshot": "ravi_django.runtime.publish:snapshot",
    # reassignment
    # receiving
    # registry
    "registry_access": "ravi_django.runtime.registry:_access",
    "agents_by_address": "ravi_django.runtime.registry:_agents",
    "DEFAULT_ACCESS": "ravi_django.runtime.registry:DEFAULT_ACCESS",
    "get_agent": "ravi_django.runtime.registry:get_agent",
    "registry_known": "ravi_django.runtime.registry:_known",
    "known_addresses": "ravi_django.runtime.registry:known_addresses",
    "known_tools": "ravi_django.runtime.registry:known_tools",
    "register": "ravi_django.runtime.registry:register",
    "register_tool": "ravi_django.runtime.registry:register_tool",
    "spec_of": "ravi_django.runtime.registry:spec_of",
    "registry_tools": "ravi_django.runtime.registry:_tools",
    "unregister": "ravi_django.runtime.registry:unregister",
    # rehearse
    "live_runs": "ravi_django.runtime.rehearse:live_runs",
    "rehearse": "ravi_django.runtime.rehearse:rehearse",
    # replay
    "check_identity": "ravi_django.runtime.replay:check_identity",
    "STALL_S": "ravi_django.runtime.replay:STALL_S",
    # replies
    "replies_send": "ravi_django.runtime.replies:send",
    # requests
    "begin_anew": "ravi_django.runtime.requests:begin_anew",
    "requests_new": "ravi_django.runtime.requests:new",
    "place_first": "ravi_django.runtime.requests:place_first",
    # retry
    "retry": "ravi_django.runtime.retry:retry",
    # scheduler
    "SCHEDULER_BATCH": "ravi_django.runtime.scheduler:BATCH",
    "SCHEDULER_COUNTED": "ravi_django.runtime.scheduler:COUNTED",
    "grace_s": "ravi_django.runtime.scheduler:grace_s",
    "SCHEDULER_MOST": "ravi_django.runtime.scheduler:MOST",
    "PER_SCHEDULE": "ravi_django.runtime.scheduler:PER_SCHEDULE",
    "SCHEDULER_RETRY_S": "ravi_django.runtime.scheduler:RETRY_S",
    "see_to": "ravi_django.runtime.scheduler:see_to",
    "scheduler_take": "ravi_django.runtime.scheduler:take",
    "scheduler_tick": "ravi_django.runtime.scheduler:tick",
    "WITHIN_S": "ravi_django.runtime.scheduler:WITHIN_S",
    # schedules
    "schedules_disable": "ravi_django.runtime.schedules:disable",
    "schedules_enable": "ravi_django.runtime.schedules:enable",
    "schedules_keep": "ravi_django.runtime.schedules:keep",
    "next_ticks": "ravi_django.runtime.schedules:next_ticks",
    "schedules_remove": "ravi_django.runtime.schedules:remove",
    "run_now": "ravi_django.runtime.schedules:run_now",
    "schedules_submit_once": "ravi_django.runtime.schedules:submit_once",
    # sealed
    "seal": "ravi_django.runtime.sealed:seal",
    # settle
    "settle_write": "ravi_django.runtime.settle:write",
    # shown
    "in_utc": "ravi_django.runtime.shown:in_utc",
    # signals
    "signal": "ravi_django.runtime.signals:signal",
    # site rules
    "site_rules_addressees": "ravi_django.runtime.site_rules:addressees",
    # sla
    "sla_figures": "ravi_django.runtime.sla:figures",
    "SLA_GROUPS": "ravi_django.runtime.sla:GROUPS",
    "sla_totals": "ravi_django.runtime.sla:totals",
    # source adapters
    "SOURCE_ADAPTERS_POLL_S": "ravi_django.runtime.source_adapters:POLL_S",
    # source rules
    "source_rules_faults": "ravi_django.runtime.source_rules:faults",
    "WRITTEN_HERE": "ravi_django.runtime.source_rules:WRITTEN_HERE",
    # sources
    "AFTER_S": "ravi_django.runtime.sources:AFTER_S",
    "sources_at_work": "ravi_django.runtime.sources:_at_work",
    "BACK_S": "ravi_django.runtime.sources:BACK_S",
    "DB_THREADS": "ravi_django.runtime.sources:DB_THREADS",
    "LEASE_S": "ravi_django.runtime.sources:LEASE_S",
    "sources_log": "ravi_django.runtime.sources:log",
    "SOURCES_LOOK_S": "ravi_django.runtime.sources:LOOK_S",
    "PER_HOST": "ravi_django.runtime.sources:PER_HOST",
    "poll_due": "ravi_django.runtime.sources:poll_due",
    "Polls": "ravi_django.runtime.sources:_Polls",
    "SOURCES_RENEWALS": "ravi_django.runtime.sources:RENEWALS",
    "sources_sweep": "ravi_django.runtime.sources:sweep",
    "sweep_unread": "ravi_django.runtime.sources:sweep_unread",
    "WHOLE_S": "ravi_django.runtime.sources:WHOLE_S",
    # specs
    "build_model": "ravi_django.runtime.specs:build_model",
    "check_spec": "ravi_django.runtime.specs:check_spec",
    "specs_find": "ravi_django.runtime.specs:find",
    "specs_load": "ravi_django.runtime.specs:load",
    "save_spec": "ravi_django.runtime.specs:save_spec",
    "uses_litellm": "ravi_django.runtime.specs:uses_litellm",
    # standing
    "standing_revoke": "ravi_django.runtime.standing:revoke",
    # store
    "answer_request": "ravi_django.runtime.store.people:answer_request",
    "append": "ravi_django.runtime.store.journal:append",
    "append_statement": "ravi_django.runtime.store.fence:append_statement",
    "claim_link": "ravi_django.runtime.store.links:claim_link",
    "claim_next": "ravi_django.runtime.store.claims:claim_next",
    "consume_signal": "ravi_django.runtime.store.waiting:consume_signal",
    "deliver_batch": "ravi_django.runtime.store.fan_out:deliver_batch",
    "full_sources": "ravi_django.runtime.store.unread:full_sources",
    "hand_over": "ravi_django.runtime.store.handing_over:hand_over",
    "inbox_after": "ravi_django.runtime.store.inboxes:inbox_after",
    "load_with_facts": "ravi_django.runtime.store.waiting:load_with_facts",
    "mark_written": "ravi_django.runtime.store.links:mark_written",
    "open_ask": "ravi_django.runtime.store.asking:open_ask",
    "open_request": "ravi_django.runtime.store.people:open_request",
    "owns_runs": "ravi_django.runtime.store.disowned:owns_runs",
    "put_off": "ravi_django.runtime.store.sources:put_off",
    "receive": "ravi_django.runtime.store.told:receive",
    "reply": "ravi_django.runtime.store.asking:reply",
    "reserve": "ravi_django.runtime.store.budgets:reserve",
    "resume_paused": "ravi_django.runtime.store.slots:resume_paused",
    "send_signal": "ravi_django.runtime.store.waiting:send_signal",
    "some_after": "ravi_django.runtime.store.inboxes:some_after",
    "source_failed": "ravi_django.runtime.store.sources:source_failed",
    "source_polled": "ravi_django.runtime.store.sources:source_polled",
    "spawn": "ravi_django.runtime.store.spawning:spawn",
    "standing": "ravi_django.runtime.store.standing:standing",
    "suspend": "ravi_django.runtime.settle:suspend",
    "tell": "ravi_django.runtime.store.telling:tell",
    "told_of": "ravi_django.runtime.store.told:told_of",
    "touch": "ravi_django.runtime.store.touching:touch",
    "use_link": "ravi_django.runtime.store.links:use_link",
    "wake_silent": "ravi_django.runtime.store.waiting:wake_silent",
    "worker_seen": "ravi_django.runtime.store.processes:worker_seen",
    # store, accounts
    "accounts_of": "ravi_django.runtime.store.accounts:accounts_of",
    "accounts_forget": "ravi_django.runtime.store.accounts:forget",
    # store, asking
    "asking_control": "ravi_django.runtime.store.control:control",
    "asking_deliver": "ravi_django.runtime.store.asking:deliver",
    "deliver_to_agent": "ravi_django.runtime.store.asking:deliver_to_agent",
    "asking_lock": "ravi_django.runtime.store.asking:lock",
    "NotDue": "ravi_django.runtime.store.asking:NotDue",
    "time_out_ask": "ravi_django.runtime.store.asking:time_out_ask",
    # store, backlog
    "BACKLOG_MOST": "ravi_django.runtime.store.backlog:MOST",
    # store, budgets
    "Amount": "ravi_django.runtime.store.budgets:Amount",
    "BUDGETS_CALLS": "ravi_django.runtime.store.budgets:CALLS",
    "Exhausted": "ravi_django.runtime.store.budgets:Exhausted",
    "free_abandoned": "ravi_django.runtime.store.budgets:free_abandoned",
    "BUDGETS_REFUSED": "ravi_django.runtime.store.budgets:REFUSED",
    "budgets_settled": "ravi_django.runtime.store.budgets:settled",
    # store, claims
    "claim": "ravi_django.runtime.store.claims:claim",
    "claim_on_postgresql": "ravi_django.runtime.store.claims:_claim_postgres",
    # store, control
    "request_cancel": "ravi_django.runtime.store.control:request_cancel",
    # store, deliveries
    "DELIVERIES_APART": "ravi_django.runtime.store.deliveries:APART",
    "deliveries_targets": "ravi_django.runtime.store.deliveries:_targets",
    # store, delivery rows
    "delivery_rows_begin": "ravi_django.runtime.store.delivery_rows:begin",
    "delivery_rows_tell": "ravi_django.runtime.store.delivery_rows:tell",
    # store, digests
    "digests_deliver_due": "ravi_django.runtime.store.digests:deliver_due",
    "has_due": "ravi_django.runtime.store.digests:has_due",
    "MOST_ITEMS": "ravi_django.runtime.store.digests:MOST_ITEMS",
    "digests_settle": "ravi_django.runtime.store.digests:_settle",
    "DIGESTS_TRIES": "ravi_django.runtime.store.digests:TRIES",
    # store, endings
    "OWNER_DELETED": "ravi_django.runtime.store.endings:OWNER_DELETED",
    "TOP_UP": "ravi_django.runtime.store.outbox:TOP_UP",
    # store, erasures
    "begin_session": "ravi_django.runtime.store.erasures:begin_session",
    "BODIES_S": "ravi_django.runtime.store.erasures:BODIES_S",
    "erase_trees": "ravi_django.runtime.store.erasures:erase_trees",
    "erasures_some": "ravi_django.runtime.store.erasures:_some",
    # store, escalations
    "due_to_escalate": "ravi_django.runtime.store.escalations:due_to_escalate",
    "escalate": "ravi_django.runtime.store.escalations:escalate",
    # store, fan out
    "FAN_OUT_BATCH_BYTES": "ravi_django.runtime.store.fan_out:BATCH_BYTES",
    "fan_out_set_all_aside": "ravi_django.runtime.store.fan_out:_set_all_aside",
    "fan_out_told_at_home": "ravi_django.runtime.store.fan_out:_told_at_home",
    "fan_out_unfinished": "ravi_django.runtime.store.fan_out:unfinished",
    # store, fence
    "fence_append": "ravi_django.runtime.store.fence:append",
    "fence_execute": "ravi_django.runtime.store.fence:_execute",
    "MAX_ROWS": "ravi_django.runtime.store.fence:MAX_ROWS",
    "Statement": "ravi_django.runtime.store.fence:Statement",
    # store, followers
    "being_changed": "ravi_django.runtime.store.followers:being_changed",
    # store, follows
    "add_follow": "ravi_django.runtime.store.follows:add_follow",
    "delete_follows": "ravi_django.runtime.store.follows:delete_follows",
    "follower_of": "ravi_django.runtime.store.follows:follower_of",
    "follows_known": "ravi_django.runtime.store.follows:known",
    "FOLLOWS_PAGE": "ravi_django.runtime.store.follows:PAGE",
    # store, fork
    "store_fork": "ravi_django.runtime.store.fork:fork",
    # store, generations
    "continue_as_new": "ravi_django.runtime.store.generations:continue_as_new",
    # store, handing over
    "handing_over_is_occupied": "ravi_django.runtime.store.handing_over:_is_occupied",
    # store, homes
    "homes_look": "ravi_django.runtime.store.homes:_look",
    # store, hook secrets
    "secrets_of": "ravi_django.runtime.store.hook_secrets:secrets_of",
    # store, inboxes
    "INBOXES_CARRIED": "ravi_django.runtime.store.inboxes:CARRIED",
    # store, journal
    "journal_block": "ravi_django.runtime.settle:block",
    "finish": "ravi_django.runtime.store.endings:finish",
    "requeue": "ravi_django.runtime.settle:requeue",
    "save_blobs": "ravi_django.runtime.store.journal:save_blobs",
    "store_big_values": "ravi_django.runtime.store.journal:store_big_values",
    "Unseen": "ravi_django.runtime.store.endings:Unseen",
    # store, leases
    "claimable": "ravi_django.runtime.store.leases:claimable",
    "heartbeat": "ravi_django.runtime.store.leases:heartbeat",
    "Lease": "ravi_django.runtime.store.leases:Lease",
    "leases_load": "ravi_django.runtime.store.leases:load",
    "LEASES_LOCK_S": "ravi_django.runtime.store.leases:LOCK_S",
    # store, links
    "make_links": "ravi_django.runtime.store.links:make_links",
    "LINKS_TRIES": "ravi_django.runtime.store.links:TRIES",
    "links_unwritten": "ravi_django.runtime.store.links:unwritten",
    # store, names
    "NAMES_ROWS": "ravi_django.runtime.store.names:ROWS",
    # store, outbox
    "outbox_body": "ravi_django.runtime.store.outbox:body",
    "of_crash": "ravi_django.runtime.store.outbox:of_crash",
    "of_request": "ravi_django.runtime.store.outbox:of_request",
    "OUTBOX_TOPIC": "ravi_django.runtime.store.outbox:TOPIC",
    "outbox_write": "ravi_django.runtime.store.outbox:write",
    # store, outbox rows
    "AGAIN_S": "ravi_django.runtime.store.outbox_rows:AGAIN_S",
    "outbox_rows_alone": "ravi_django.runtime.store.outbox_rows:alone",
    "outbox_rows_backlog": "ravi_django.runtime.store.outbox_rows:backlog",
    "outbox_rows_forget": "ravi_django.runtime.store.outbox_rows:forget",
    "is_empty": "ravi_django.runtime.store.outbox_rows:is_empty",
    "outbox_rows_refused": "ravi_django.runtime.store.outbox_rows:refused",
    "OUTBOX_ROWS": "ravi_django.runtime.store.outbox_rows:ROWS",
    "OUTBOX_ROWS_TRIES": "ravi_django.runtime.store.outbox_rows:TRIES",
    "outbox_rows_waiting": "ravi_django.runtime.store.outbox_rows:waiting",
    # store, people
    "expire_request": "ravi_django.runtime.store.people:expire_request",
    "people_forget_earlier": "ravi_django.runtime.store.people:forget_earlier",
    "TooManyRequests": "ravi_django.runtime.store.people:TooManyRequests",
    "write_request": "ravi_django.runtime.store.people:write_request",
    # store, personal
    "PERSONAL_OTHERS": "ravi_django.runtime.store.personal:OTHERS",
    "PERSONAL_TABLES": "ravi_django.runtime.store.personal:TABLES",
    # store, postgres
    "postgres_execute": "ravi_django.runtime.store.postgres:execute",
    # store, processes
    "due_for_hint": "ravi_django.runtime.store.processes:due_for_hint",
    "forget_dead_workers": "ravi_django.runtime.store.processes:forget_dead_workers",
    "worker_swept": "ravi_django.runtime.store.processes:swept",
    "refresh_daily": "ravi_django.runtime.store.accounts:refresh",
    "silent": "ravi_django.runtime.store.waiting:silent",
    "processes_swept": "ravi_django.runtime.store.processes:swept",
    "worker_gone": "ravi_django.runtime.store.processes:worker_gone",
    # store, prune
    "prune_delete": "ravi_django.runtime.store.prune:_delete",
    "forget_archives": "ravi_django.runtime.store.prune:forget_archives",
    "prune_frames": "ravi_django.runtime.store.prune:frames",
    "journal_rows": "ravi_django.runtime.store.prune:journal_rows",
    "prune_blobs": "ravi_django.runtime.store.prune:prune_blobs",
    "prune_trees": "ravi_django.runtime.store.prune:prune_trees",
    "PRUNE_ROWS": "ravi_django.runtime.store.prune:ROWS",
    "PRUNE_TREES": "ravi_django.runtime.store.prune:TREES",
    "unreferenced_blobs": "ravi_django.runtime.store.prune:unreferenced_blobs",
    # store, publications
    "create_publication": "ravi_django.runtime.store.publications:create_publication",
    "PUBLICATIONS_ROWS": "ravi_django.runtime.store.publications:ROWS",
    "scope_of": "ravi_django.runtime.store.publications:scope_of",
    # store, queue
    "create_run": "ravi_django.runtime.store.queue:create_run",
    "create_session": "ravi_django.runtime.store.queue:create_session",
    "queue_orphans": "ravi_django.runtime.store.queue:orphans",
    "promote_orphan": "ravi_django.runtime.store.queue:promote_orphan",
    # store, records
    "records_record": "ravi_django.runtime.store.records:record",
    "records_tell": "ravi_django.runtime.store.records:tell",
    # store, retry
    "store_retry": "ravi_django.runtime.store.retry:retry",
    # store, saves
    "heard": "ravi_django.runtime.store.saves:heard",
    "with_untold": "ravi_django.runtime.store.saves:with_untold",
    # store, schedules
    "schedules_advance": "ravi_django.runtime.store.schedules:advance",
    "store_schedules_due": "ravi_django.runtime.store.schedules:_due",
    "schedules_due": "ravi_django.runtime.store.schedules:due",
    "schedules_present": "ravi_django.runtime.store.schedules:present",
    "read_due": "ravi_django.runtime.store.schedules:read_due",
    "schedules_record": "ravi_django.runtime.store.schedules:record",
    "schedules_seen": "ravi_django.runtime.store.schedules:seen",
    # store, slots
    "slots_live": "ravi_django.runtime.store.slots:live",
    "slots_resume": "ravi_django.runtime.store.slots:resume",
    # store, source items
    "A_DAY": "ravi_django.runtime.store.source_items:A_DAY",
    "SOURCE_ITEMS_ROWS": "ravi_django.runtime.store.source_items:ROWS",
    # store, sources
    "any_source_due": "ravi_django.runtime.store.sources:any_source_due",
    "claim_sources": "ravi_django.runtime.store.sources:claim_sources",
    "renew_sources": "ravi_django.runtime.store.sources:renew_sources",
    # store, spawning
    "make_child": "ravi_django.runtime.store.spawning:make_child",
    # store, standing
    "revoke_standing": "ravi_django.runtime.store.standing:revoke_standing",
    # store, streams
    "mark_many_published": "ravi_django.runtime.store.streams:mark_many_published",
    "mark_published": "ravi_django.runtime.store.streams:mark_published",
    "reserve_events": "ravi_django.runtime.store.streams:reserve_events",
    "unpublished": "ravi_django.runtime.store.streams:unpublished",
    # store, telling
    "telling_carry": "ravi_django.runtime.store.telling:carry",
    "TELLING_GONE": "ravi_django.runtime.store.telling:GONE",
    "tell_unread": "ravi_django.runtime.store.telling:tell_unread",
    "Told": "ravi_django.runtime.store.telling:Told",
    "TELLING_UNREAD": "ravi_django.runtime.store.telling:UNREAD",
    "UNREAD_S": "ravi_django.runtime.store.telling:UNREAD_S",
    # store, topups
    "answer_top_up": "ravi_django.runtime.store.topups:answer_top_up",
    "open_top_up": "ravi_django.runtime.store.topups:open_top_up",
    # store, touching
    "touching_lock": "ravi_django.runtime.store.touching:lock",
    # store, unread
    "is_full": "ravi_django.runtime.store.unread:is_full",
    "left_unread": "ravi_django.runtime.store.unread:left_unread",
    # store, waiting
    "Facts": "ravi_django.runtime.store.waiting:Facts",
    "waiting_facts": "ravi_django.runtime.store.waiting:facts",
    "waiting_silent": "ravi_django.runtime.store.waiting:silent",
    # submit
    "submit_message": "ravi_django.runtime.submit:_message",
    "submit": "ravi_django.runtime.submit:submit",
    "submit_once": "ravi_django.runtime.submit:submit_once",
    # sweeper
    "SWEEPER_BATCH": "ravi_django.runtime.sweeper:BATCH",
    "sweeper_erasing": "ravi_django.runtime.sweeper:erasing",
    "sweeper_fan_out": "ravi_django.runtime.sweeper:fan_out",
    "SWEEPER_LOCK": "ravi_django.runtime.sweeper:_LOCK",
    "sweeper_mail": "ravi_django.runtime.sweeper:mail",
    "sweeper_model_sources": "ravi_django.runtime.sweeper:model_sources",
    "sweeper_relay": "ravi_django.runtime.sweeper:relay",
    "sweeper_scheduler": "ravi_django.runtime.sweeper:scheduler",
    "sweeper_sources": "ravi_django.runtime.sweeper:sources",
    "sweeper_sweep": "ravi_django.runtime.sweeper:sweep",
    # tickets
    "tickets_issue": "ravi_django.runtime.tickets:issue",
    "tickets_take": "ravi_django.runtime.tickets:take",
    # ticks
    "check_cron": "ravi_django.runtime.ticks:check_cron",
    "Timetable": "ravi_django.runtime.ticks:Timetable",
    "zone_of": "ravi_django.runtime.ticks:zone_of",
    "TicksZoneInfo": "ravi_django.runtime.ticks:ZoneInfo",
    # tool caps
    "Spent": "ravi_django.runtime.tool_caps:Spent",
    "Stopwatch": "ravi_django.runtime.tool_caps:Stopwatch",
    "tool_caps_time": "ravi_django.runtime.tool_caps:time",
    # tool pauses
    "MAX_PAUSES": "ravi_django.runtime.tool_pauses:MAX_PAUSES",
    # tool promises
    "tool_promises_on_a_thread": "ravi_django.runtime.tool_promises:on_a_thread",
    # tool results
    "is_small": "ravi_django.runtime.tool_results:is_small",
    "MAX_ITEMS": "ravi_django.runtime.tool_results:MAX_ITEMS",
    "result_of": "ravi_django.runtime.tool_results:result_of",
    "tool_results_words": "ravi_django.runtime.tool_results:words",
    # tool running
    "tool_running_connections": "ravi_django.runtime.tool_running:connections",
    "GRACE_S": "ravi_django.runtime.tool_running:GRACE_S",
    # tool threads
    "tool_threads_hanging": "ravi_django.runtime.tool_threads:hanging",
    "LOST_PER_THREAD": "ravi_django.runtime.tool_threads:LOST_PER_THREAD",
    "ToolThreads": "ravi_django.runtime.tool_threads:ToolThreads",
    # tools, ask human
    "AskHumanTool": "ravi_django.runtime.tools.ask_human:AskHumanTool",
    # tools, board
    "TaskBoard": "ravi_django.runtime.tools.board:TaskBoard",
    # tools, queryset
    "QuerysetTool": "ravi_django.runtime.tools.queryset:QuerysetTool",
    # tools, results
    "results_aligned": "ravi_django.runtime.tools.results:_aligned",
    "results_blob": "ravi_django.runtime.tools.results:_blob",
    "results_found": "ravi_django.runtime.tools.results:_found",
    "MAX_FOUND": "ravi_django.runtime.tools.results:MAX_FOUND",
    "results_part": "ravi_django.runtime.tools.results:_part",
    "ReadResultTool": "ravi_django.runtime.tools.results:ReadResultTool",
    "RESULTS_STEP": "ravi_django.runtime.tools.results:_STEP",
    # webhooks
    "forget_old_secret": "ravi_django.runtime.webhooks:forget_old_secret",
    "make_secret": "ravi_django.runtime.webhooks:make_secret",
    "webhooks_parsed": "ravi_django.runtime.webhooks:_parsed",
    "path_of": "ravi_django.runtime.webhooks:path_of",
    # worker
    "close_worker": "ravi_django.runtime.worker:close_worker",
    "get_worker": "ravi_django.runtime.worker:get_worker",
    "Worker": "ravi_django.runtime.worker:Worker",
    "current_worker": "ravi_django.runtime.worker:_worker",
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

"""One name for each function, class and value inside the package that these tests reach, by `tests.support.world`.

When a file of the package moves, its row here changes, and no test.
"""

from importlib import import_module
from typing import Any

# A module below ravi_django, and its names. `verb=name` is for a name that says too little alone; `verb=`, the module.
PLACES = """
.: PUBLIC_NAMES=_NAMES
access: access_load=_load
agents.current: task_agent_id=_task_agent_id task_agent_label=_task_agent_label task_ctx=_task_ctx
    task_may_summarize=_task_may_summarize task_model=_task_model task_parent_agent_id=_task_parent_agent_id
    task_run_id=_task_run_id task_thread_id=_task_thread_id
agents.memory.agent_context: drop_turns load_history persist_turns
agents.memory.compaction.tokens: TOKENS_TURN_S=_TURN_S
agents.memory.transcript: close_dangling DANGLING_INTERRUPTED=INTERRUPTED
agents.messages: loop_deliver=deliver final_text message_to_chat summarize
wing: wings_each=each
wings.feeds.news.personal_feed: PERSONAL_FEED_PREFER=_PREFER
api.exchange: EXCHANGE_WAIT_S=WAIT_S
api.metrics: health_last=_last
bytes_budget: BytesBudget process_bytes
wings.feeds.fetching.adapter: adapters_by_kind=_adapters
wings.feeds.fetching.fetch: fetch_max_age=_max_age fetch_retry_after=_retry_after
wings.feeds.fetching.signatures: SIGNATURES_NOBODYS=_DUMMY
calls.llm.errors: tool_results_words=error_text
calls.llm.fallback: fallback_limits=_limits
calls.llm.loading: aload_litellm warm_models=warm
calls.llm.pricing: pricing_table=_table
calls.llm.wire: wire_convert=_convert
db: db_connection=connection
kernel.identity: TopicId
kernel.people: Addressees
limits: close_one limits_count=count limits_limit=limit open_one OPEN_S limits_take=take
management.diagnosis: diagnose_model_limits=model_limits doctor=examine
models.base: ids_last=_last uuid7
runs.budgets.accounts: accounts_of accounts_forget=forget refresh_daily=refresh
runs.budgets.ledger: Amount BUDGETS_CALLS=CALLS Exhausted free_abandoned BUDGETS_REFUSED=REFUSED reserve
    budgets_settled=settled
runs.catalog.agent_models: uses_litellm
runs.catalog.prompt_engine: PROMPT_ENGINE_FILTERS=FILTERS PROMPT_ENGINE_TAGS=TAGS
runs.catalog.prompts: PromptTemplate
runs.catalog.registry: registry_access=_access agents_by_address=_agents DEFAULT_ACCESS get_agent
    registry_conflicts=conflicts
    registry_known=_known known_addresses known_tools register register_tool spec_of registry_tools=_tools unregister
runs.catalog.rows: sync_after_migrate sync_agents
runs.catalog.specs: build_model check_spec specs_find=find bodies_forget=forget specs_load=load save_spec
engine.db.claim_order: claim_at MOST_OPEN
engine.db.clock: clock_after=after clock_fixed=fixed now schedules_present=present
engine.db.connections: OWN_CONNECTIONS_SHAPES=SHAPES
engine.db.postgres: postgres_execute=execute
engine.db.threads: CLOSE_S DatabaseThreads forget_readers DATABASE_REPEAT_S=REPEAT_S DATABASE_RETRY_S=RETRY_S on_thread
    with_retry
engine.worker.context: DurableContext
engine.worker.drive: Active
engine.worker.engine: Engine ENGINE_END_S=END_S EnginePublisher=Publisher
engine.worker.health: ANSWER_S Check check_all health_events=events LIMIT_S health_sweep=sweep Unhealthy
    health_worker=worker
engine.worker.heartbeat: Heartbeat
engine.worker.rehearse: live_runs rehearse
engine.worker.server: server_begun=_begun start_when_ready=_start_when_ready
engine.worker.settle: journal_block=block requeue suspend settle_write=write
engine.worker.sweep: SWEEPER_BATCH=BATCH sweeper_erasing=erasing SWEEPER_LOCK=_LOCK sweeper_mail=mail
    sweeper_sweep=sweep
engine.worker.worker: close_worker read_end=_end_of get_worker Runtime Worker current_worker=_worker
wings.events.bus: Bus BASE_DEAD=DEAD BASE_EVENTS=EVENTS HANDLER_S NOT_YET_S NotYet Relayed BASE_RETRY_S=RETRY_S
    BASE_TRIES=TRIES
wings.events.group: FORGET_S
wings.events.memory: MEMORY_KEPT=MOST MemoryBus
wings.events.relay: AGAIN_S outbox_rows_alone=alone outbox_rows_backlog=backlog outbox_rows_forget=forget
    is_empty outbox_rows_refused=refused OUTBOX_ROWS_TRIES=TRIES outbox_rows_waiting=waiting
wings.events.relay: RELAY_BATCH=BATCH RELAY_BATCH_BYTES=BATCH_BYTES enqueue relay_event=_event courier_hint=hint
    IDLE_S courier_join=join courier_lock=_lock relay_one_here=_one_here relay relay_safely RELAY_REST_S=REST_S
    relay_rests_until=_rests_until courier_send=_send courier_thread=_thread courier_time=time courier_wake=_wake
wings.events.relay: forget_buses get_bus
wings.events.surfaces: event_bus doctor_outbox=outbox
wings.feeds.web.findings: doctor_sources=sources
wings.events.valkey: ValkeyBus
engine.journal.append: append save_blobs store_big_values
engine.journal.bodies: bodies_keep=keep
engine.journal.entries: BLOB_KEY blob_value entries_encode=encode Entry INLINE_BYTES make_blob make_text_blob NewTurn
    ENTRIES_SCHEMA=SCHEMA MAX_ITEMS NotJson
engine.journal.fence: fence_append=append append_statement fence_execute=_execute MAX_ROWS Statement
engine.journal.lease: Lease
engine.journal.outbox: outbox_body=body of_crash of_request TOP_UP OUTBOX_TOPIC=TOPIC outbox_write=write
engine.journal.replay: check_identity STALL_S
engine.lease.appender: append_repeatable Appender LoopConnection APPENDING_REST_S=REST_S
engine.lease.claims: claim claim_batch claim_on_postgresql=_claim_postgres claimable heartbeat LEASES_LOCK_S=LOCK_S
engine.lease.lease_state: gate_datetime=datetime NotExpired TooManyRequests
engine.lease.recorder: EFFECTS_REPEAT_S=REPEAT_S LATE_S
engine.lease.stopwatch: Stopwatch tool_caps_time=time
engine.lease.tool_limits: ToolUsage
engine.lease.wake_state: WakeState wake_state_later=later_than inbox_after leases_load=load load_with_wake_state
    some_after
engine.lease.backoff: delay_s
engine.lease.history: history_append=_append DjangoHistoryProvider history_read=read read_remembered read_window
engine.lease.inbox: announcement
engine.lease.paths: paths_current=current paths_entered=entered paths_install=install Scope
    paths_scope=_scope
engine.lease.state: current_context
engine.lease.sleeps: consume_signal
engine.lease.waits: TEST_GRACE_S
runs.lifecycle.endings: cancel asking_control=record_control request_cancel
runs.lifecycle.erasing: owners_live=_live owns_runs
runs.lifecycle.endings: finish OWNER_DELETED UnreadMessages
runs.lifecycle.erasing: delete_session erase_user erasing_sweep=sweep export ERASING_SWEPT=SWEPT erasing_work=work
runs.files.files: delete_unused upload
runs.lifecycle.erasure_rows: begin_session BODIES_S erase_trees erasures_some=_some
runs.lifecycle.fork: fork fork_once store_fork=write_fork
runs.lifecycle.generations: continue_as_new hand_over=write_handoff handing_over_is_occupied=_is_occupied
runs.lifecycle.personal: NAMES_ROWS=ROWS
runs.lifecycle.personal: PERSONAL_OTHERS=OTHERS PERSONAL_TABLES=TABLES
runs.lifecycle.prune: PRUNE_BLOBS=BLOBS DAY_S PRUNE_KINDS=KINDS prune retention
runs.lifecycle.prune_rows: prune_delete=delete_rows prune_archives=archives prune_frames=frames journal_rows prune_blobs
    prune_trees PRUNE_ROWS=ROWS PRUNE_TREES=TREES unreferenced_blobs
runs.lifecycle.retry: retry store_retry=write_retry
calls.middleware.audit_log: audit_log_write_audit=write_audit
calls.middleware.response_cache: TIMEOUT_S
calls.model.admission: RESERVE_TOKENS budgets_estimate=_estimate budgets_forget=forget budgets_largest=_largest
calls.model.call: prices_errors=setting_errors
calls.model.model_limits: providers_forget=forget limit_of_model=of limits_refresh=refresh limit_refuse=refuse
    limit_answered=answered limit_errors=setting_errors
calls.model.permits: permits_grant=grant permits_recount=recount
calls.model.provider_waits: PROVIDERS_MEMORY_S=MEMORY_S
calls.model.streaming: streaming_aload_litellm=aload_litellm
people.site_rules: addresses_get_user_model=get_user_model of_users ADDRESSES_READ=READ users_at
people.answers: answer human_cancel=cancel EVERY_ACTION reassign human_resolve=resolve
people.sticky: decisions_decided=decided decisions_told=as_decision
people.escalation: due_to_escalate escalate
people.figures: sla_figures=figures SLA_GROUPS=GROUPS
people.mail: claim_mail=claim parts_of mark_written token_of LINKS_TRIES=TRIES links_unwritten=unwritten
people.mail: MAIL_BATCH=BATCH mail_connection=_connection mail_hint=hint mail_letter_to=letter_to MOST_SUBJECT
    on_request mail_rests_until=_rests_until mail_send=send mail_site_connection=_site_connection SMTP_TIMEOUT_S
    mail_sweep=sweep title_of
people.records: records_record=record records_notify=notify
people.requests: begin_anew requests_new=new place_first
people.rights: answerable people_candidates=candidates people_check=check may_answer_unsaved
    has_recipient open_among rights_refusal=refusal people_visible=visible
people.rows: answer_request expire_request people_forget_earlier=forget_earlier open_request write_request
people.signal_answers: replies_send=send
people.site_rules: site_rules_addressees=addressees
people.sticky: sticky_revoke=revoke revoke_sticky find_sticky
people.top_ups: answer_top_up open_top_up pending_top_up
people.uncertain: END_LATE=end_late
live.rollups.counting: rollups_count=count rollups_sweep=sweep
live.rollups.reading: read_dashboard=read DashboardTimes=Times Wanted
runs.background_tasks: background_hint=hint background_lock=_lock background_stop=stop
runs.checks: submit_message=message_of
runs.following: FOLLOWING_AGAIN_S=AGAIN_S FOLLOWING_TRIES=TRIES
runs.hints: DISPATCH_ANSWER_S=ANSWER_S broker_connection CONNECT_S dispatch_down_until=_down_until on_commit
    dispatch_pools=_pools dispatch_publish=publish DISPATCH_REST_S=REST_S dispatch_send=send send_many
runs.sessions: create_run create_session queue_orphans=orphans promote_orphan
runs.signals: send_signal signal silent waiting_silent=silent wake_silent
runs.submit: submit_once
runs.lifecycle.submit: submit
calls.tools.call: QUICK_S
runs.wake: touching_lock=lock NotLocked touch
runs.workers: code_key=key_of due_for_hint forget_dead_workers workers_is_running=is_running
    processes_swept=swept worker_swept=swept worker_gone worker_seen
wings.feeds.schedules.ticking: schedules_advance=advance schedules_due=due store_schedules_due=_due
    read_due schedules_record=record schedules_seen=recorded
wings.feeds.schedules.schedules: schedules_disable=disable schedules_enable=enable schedules_keep=save_checked
    next_ticks
    schedules_remove=remove run_now schedules_submit_once=submit_once
wings.feeds.schedules.ticking: SCHEDULER_BATCH=BATCH SCHEDULER_COUNTED=COUNTED grace_s SCHEDULER_MOST=MOST PER_SCHEDULE
    SCHEDULER_RETRY_S=RETRY_S see_to=handle scheduler_take=handle_row scheduler_tick=tick WITHIN_S
wings.feeds.schedules.timetable: check_cron Timetable zone_of TicksZoneInfo=ZoneInfo
wings.feeds.social.follow_rows: BACKLOG_MOST=MOST
wings.feeds.social.deliveries: homes_look=_first_follows deliveries_targets=_targets
wings.feeds.social.delivery_rows: to_live_runs to_new_runs
wings.feeds.social.digests: digests_deliver_due=deliver_due has_due MOST_ITEMS digests_settle=_settle
    DIGESTS_TRIES=TRIES
wings.feeds.social.fan_out: FAN_OUT_BATCH_BYTES=BATCH_BYTES FAN_OUT_BATCHES=BATCHES deliver_batch deliver_due
    FAN_OUT_FEW=FEW fan_out_hint=hint fan_out_run=run fan_out_set_all_aside=_set_all_aside fan_out_sweep=sweep
    fan_out_delivered=_delivered_to_live_runs fan_out_unfinished=unfinished fan_out_wake=wake
wings.feeds.social.follow_rows: add_follow follower_of follows_known=known FOLLOWS_PAGE=PAGE
wings.feeds.social.follow_rows: being_changed
wings.feeds.social.follows: follow followers
wings.feeds.social.publications: create_publication emit MAX_HOPS scope_of
wings.feeds.sources.adding: add_source source_errors=errors_of WRITTEN_HERE
wings.feeds.sources.webhooks: feed_agent
wings.feeds.sources.delivery: delivery_carry=carry DELIVERY_GONE=GONE deliver_items=deliver deliver_unread Delivery
    DELIVERY_UNREAD=UNREAD UNREAD_S
wings.feeds.sources.items: A_DAY SOURCE_ITEMS_ROWS=ROWS
wings.feeds.sources.poll: sources_at_work=_at_work BACK_S DB_THREADS LEASE_S sources_log=log SOURCES_LOOK_S=LOOK_S
    PER_HOST poll_due Polls=_Polls SOURCES_RENEWALS=RENEWALS sources_sweep=sweep sweep_unread WHOLE_S
    POLL_GAP_S=GAP_S POLLS_AT_ONCE=FEEDS_AT_ONCE
wings.feeds.sources.pollers: polling_parse=parse POLLING_PARSERS=PARSERS SOURCE_ADAPTERS_POLL_S=POLL_S pollers
    pollers_by_kind=_pollers register_poller WAIT_S FEEDS_AT_ONCE FEEDS_GAP_S=GAP_S
wings.feeds.sources.items: any_source_due claim_sources put_off renew_sources source_failed source_polled
wings.feeds.sources.webhooks: seal secrets_of
wings.feeds.sources.items: full_sources is_full left_unread
wings.feeds.sources.webhooks: forget_old_secret make_secret webhooks_parsed=_parsed path_of
live.streams.republish: archive mark_many_published reserve_events unpublished
live.streams.buffer: Batch get_buffer REQUESTS Lost MarkReached stream_url
live.streams.frames: archive_unpacked=unpacked collapse frames_delta=delta frames_durable=durable frames_rest=rest
    Frame Source stream_done
live.streams.publisher: ARCHIVE_S FLUSH_S MAX_PAUSE_S MAX_WAITING Publisher PUBLISH_RESERVE=RESERVE
live.streams.reading: events_archived=archived events_follow=follow events_page=page
    EVENTS_PROGRESS=PROGRESS publish_internalize=internalize PUBLISH_PAGE=PAGE snapshot SNAPSHOT_BYTES
live.streams.live: LIVE_MAX_UNREAD_BYTES=MAX_UNREAD_BYTES LIVE_RENEW_S=RENEW_S LIVE_RIGHTS_S=RIGHTS_S live_sight=_sight
live.streams.republish: publish_archived=archived publish_ended publish_past publish_retried republish
live.streams.frames: in_utc
live.streams.buffer: DatabaseBuffer
live.streams.valkey: BUFFER_VALKEY_POLL_S=POLL_S ENDED_TTL_S FRAMES_TTL_S=TTL_S ValkeyBuffer
runs.teams.ask_rows: asking_deliver=deliver deliver_to_agent asking_lock=lock open_ask reply time_out_ask
runs.teams.board: board_add=add board_last_number=_last_number MAX_ALL MAX_TASKS BoardKey board_as_json=as_json
    board_update=update
runs.teams.slots: slots_promote=promote
runs.teams.spawn: make_child spawn=write_spawn Spawning
calls.builtin.ask_human: AskHumanTool
calls.builtin.board: TaskBoard
calls.builtin.queryset: QuerysetTool
calls.builtin.read_result: results_aligned=_aligned results_blob=_blob results_matches=_matches MAX_FOUND
    results_part=_part ReadResultTool RESULTS_STEP=_STEP
calls.tools.call: may_be_late=_may_be_late
calls.tools.pauses: MAX_PAUSES
calls.tools.guarantees: tool_on_a_thread=on_a_thread
calls.tools.results: BLOB_BYTES is_small result_of
calls.tools.execute: tool_connections=connections GRACE_S
calls.tools.uncertain: LOST_S
calls.tools.tool_threads: tool_threads_hanging=hanging LOST_PER_THREAD ToolThreads
services.open_streams: Credential streams_look=look streams_lost=lost streams_open=_open OpenStream
    tickets_issue=issue_ticket tickets_take=take_ticket
tasks: tasks_serves=_serves tasks_start=_start tasks_stop_claiming=_stop_claiming
testing.running: running_time=time
ui.journal: UI_ROWS=ROWS
ws.consumer: consumer_submit=_submit
"""


def _verbs() -> dict[str, tuple[str, str]]:
    found = {}
    for row in PLACES.replace("\n    ", " ").strip().splitlines():
        module, _, words = row.partition(": ")
        for word in words.split():
            verb, _, name = word.rpartition("=") if not word.endswith("=") else (word[:-1], "", "")
            assert (verb or name) not in found, f"{verb or name!r} stands for two things"
            found[verb or name] = f"ravi_django.{module}".rstrip("."), name
    return found


VERBS = _verbs()


def place_of(verb: str) -> tuple[Any, str]:
    """The module and the name in it that `verb` stands for; without a name, the module itself."""
    if verb not in VERBS:
        raise AttributeError(f"Unknown verb {verb!r}: add it to tests/support/verbs.py.")
    module, name = VERBS[verb]
    return import_module(module), name


def __getattr__(verb: str) -> Any:
    module, name = place_of(verb)
    return getattr(module, name) if name else module

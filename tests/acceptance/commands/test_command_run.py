"""`manage.py ravi_run`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from project.process import wait_until
from project.services import free_port
from ravi_django.models import Run, Session
from tests.support.cases import case
from tests.support.patience import BOUND_S

pytestmark = [pytest.mark.timeout(180), pytest.mark.full]


@pytest.mark.gate
def test_it_shows_tool_calls_and_the_answer(inline_site) -> None:
    done = inline_site.manage("ravi_run", "react/assistant", "What is 6 * 7?")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith('→ calculator {"expression"')
    assert done.stdout.splitlines()[1] == "← calculator: 42"
    assert "42" in done.stdout.splitlines()[2]
    assert len(done.stdout.splitlines()) == 3


def test_json_is_a_frame_a_line_and_the_run_last(inline_site) -> None:
    done = inline_site.manage("ravi_run", "react/assistant", "What is 6 * 7?", "--json")

    assert done.returncode == 0, done.stderr
    *frames, run = [json.loads(line) for line in done.stdout.splitlines()]
    assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))
    assert frames[-1]["type"] == "stream.done"
    assert {frame["run"] for frame in frames} == {run["id"]}
    assert (run["status"], run["agent"], run["error"]) == ("completed", "react/assistant", None)
    assert "".join(frame["text"] for frame in frames if frame["type"] == "text.delta") == run["output"]
    assert inline_site.run(run["id"])[0] == "completed"


def test_a_failed_run_ends_with_1_and_the_providers_words(sqlite_site) -> None:
    done = sqlite_site.manage("ravi_run", "react/refused", "hi")
    as_json = sqlite_site.manage("ravi_run", "react/refused", "hi", "--json")

    assert (done.returncode, as_json.returncode) == (1, 1)
    assert "AuthenticationError: no such key: sk-nothing" in done.stderr
    assert "\nfailed: " not in done.stderr, "the last line says it"
    run = json.loads(as_json.stdout.splitlines()[-1])
    assert run["error"] == {"type": "AuthenticationError", "message": "no such key: sk-nothing"}


def test_what_becomes_of_a_run_is_told(sqlite_site) -> None:
    for agent, code, out, said in (
        ("plain/drifted", 1, "", ("is blocked: Determinism", "the code no longer fits")),
        ("react/flaky", 0, "better now\n", ("retried: TransientError: overloaded, come back later",)),
        ("plain/quiet", 0, "said in the end\n", ()),
        ("react/rude", 0, "red [31malert[0m done\n", ()),  # without the escape sequences of the model
    ):
        with case(agent):
            done = sqlite_site.manage("ravi_run", agent, "hi")
            assert (done.returncode, done.stdout) == (code, out)
            assert all(words in done.stderr for words in said)


@pytest.mark.django_db
def test_bad_usage_ends_with_2_and_writes_nothing() -> None:
    for arguments, words in (
        (["react/nobody", "hi"], "no agent is registered as 'react/nobody'"),
        (["nonsense", "hi"], "nonsense"),
        (["react/assistant", "  "], "must not be empty"),
        (["react/assistant", "hi", "--session", "n" * 201], "the name of a conversation"),
        (["react/assistant", "hi", "--session", str(uuid4())], "there is no session"),
        (["react/assistant", "hi", "--user", "nobody"], "there is no user 'nobody'"),
    ):
        with case(arguments):
            with pytest.raises(CommandError, match=words) as refused:
                call_command("ravi_run", *arguments)
            assert refused.value.returncode == 2
    assert not Run.objects.exists() and not Session.objects.exists()


def test_a_session_goes_on_and_belongs_to_its_owner(sqlite_site) -> None:
    sqlite_site.python(
        "from django.contrib.auth import get_user_model as users\n"
        "for name in ('olga', 'stranger'): users().objects.get_or_create(username=name)"
    )
    named = ("--user", "olga", "--session", "her letters")
    done = sqlite_site.manage("ravi_run", "react/assistant", "hello", *named, "--json")
    first = json.loads(done.stdout.splitlines()[-1])

    again = sqlite_site.manage("ravi_run", "react/assistant", "hello again", "--session", first["session"], "--json")
    stranger = sqlite_site.manage(
        "ravi_run", "react/assistant", "hi", "--session", first["session"], "--user", "stranger"
    )

    second = json.loads(again.stdout.splitlines()[-1])
    assert (again.returncode, second["session"]) == (0, first["session"])
    assert stranger.returncode == 2
    key = first["session"].replace("-", "")
    owners = sqlite_site.rows(
        f"SELECT username FROM ravi_run r JOIN auth_user u ON u.id = r.owner_id WHERE session_id = '{key}'"
    )
    assert owners == [("olga",), ("olga",)]
    assert sqlite_site.rows(f"SELECT count(*) FROM ravi_turn WHERE session_id = '{key}'") == [(4,)]


def test_ctrl_c_leaves_the_run_and_says_where_it_is(inline_site) -> None:
    with inline_site.managed("ravi_run", "react/slow", "hi", "--json") as command:
        assert command.says('"thinking"'), command.text
        run_id = json.loads(command.text.splitlines()[0])["run"]

        command.process.send_signal(signal.SIGINT)

        assert command.process.wait(BOUND_S) == 130
        assert f"Run {run_id} continues" in command.text
        assert f"cancel: POST /ravi/runs/{run_id}/cancel/" in command.text
    assert inline_site.run(run_id) == ("pending", None, "")
    inline_site.python(f"from tests.support.world import cancel; cancel('{run_id}', 'done with it')")


def test_a_reader_that_goes_away_ends_it_quietly(sqlite_site) -> None:
    command = ("manage.py", "ravi_run", "react/assistant", "hi", "--json")
    with sqlite_site.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        errors = process.stderr.read()

    assert process.returncode == 141, errors
    assert re.match(r"\nRun \S+ (is completed|goes on)", errors)
    assert "Traceback" not in errors


def test_with_celery_the_workers_drive_it_and_ctrl_c_does_not_stop_them(postgres_site) -> None:
    celery = ["-m", "celery", "-A", "project", "worker", "-P", "threads", "-c", "4", "-Q", "ravi", "-l", "WARNING"]
    with postgres_site.background(*celery) as worker:
        alive = "SELECT count(*) FROM ravi_workerprocess"
        assert wait_until(lambda: postgres_site.rows(alive) == [(1,)], BOUND_S), worker.text

        done = postgres_site.manage("ravi_run", "react/assistant", "What is 6 * 7?")
        with postgres_site.managed("ravi_run", "react/slow", "hi", "--json") as command:
            assert command.says('"thinking"'), command.text
            run_id = json.loads(command.text.splitlines()[0])["run"]
            command.process.send_signal(signal.SIGINT)
            ended = command.process.wait(BOUND_S)

        assert (done.returncode, "42" in done.stdout) == (0, True), done.stderr
        assert ended == 130
        assert postgres_site.run(run_id)[0] == "running"
        postgres_site.python(f"from tests.support.world import cancel; cancel('{run_id}', 'done with it')")
        assert wait_until(lambda: postgres_site.run(run_id)[0] == "cancelled", BOUND_S)


def test_without_redis_it_says_which_run_there_is_and_how_to_follow_it(postgres_site) -> None:
    done = postgres_site.with_(REDIS_URL=f"redis://127.0.0.1:{free_port()}/0").manage("ravi_run", "plain/quiet", "hi")

    ((run_id,),) = postgres_site.rows(
        "SELECT id::text FROM ravi_run WHERE agent = 'plain/quiet' AND status = 'pending'"
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) < 12, done.stderr
    assert f"Run {run_id} continues." in done.stderr
    assert f"  follow: /ravi/runs/{run_id}/events/" in done.stderr
    assert "ConnectionError" in done.stderr and "manage.py ravi_doctor" in done.stderr

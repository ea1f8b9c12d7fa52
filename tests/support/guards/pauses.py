"""Guards of tools that pause."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

_INPUT = UNIT + "test_pause_for_input.py"
_CHILD = UNIT + "test_pause_for_child.py"
_FINISH = UNIT + "test_finish_result.py"

PAUSES = [
    Mutant(
        "pause: an attempt that it has closed is not uncertain",
        RUNTIME + "replay.py",
        "is_closed = paused is not None and paused.attempt >= started.attempt\n",
        "is_closed = False\n",
        (_INPUT,),
    ),
    Mutant(
        "pause: it closes no attempt after its own",
        RUNTIME + "replay.py",
        "is_closed = paused is not None and paused.attempt >= started.attempt\n",
        "is_closed = paused is not None\n",
        (_INPUT,),
    ),
    Mutant(
        "pause: the attempt is closed in the commit that opens the request",
        RUNTIME + "tool_pauses.py",
        "        effects.note(closing.rows[0])  # in one commit with the next row: nothing comes in between\n",
        "",
        (_INPUT,),
    ),
    Mutant(
        "pause: the next attempt is another one",
        RUNTIME + "replay.py",
        "        known = [rows[path].attempt for rows in (self._started, self._paused) if path in rows]\n",
        "        known = [rows[path].attempt for rows in (self._started,) if path in rows]\n",
        (_INPUT,),
    ),
    Mutant(
        "pause: an answer belongs to its own request",
        RUNTIME + "tool_pauses.py",
        "    mine = request is not None and str(request.id) == request_id\n",
        "    mine = request is not None\n",
        (_INPUT,),
    ),
    Mutant(
        "pause: a request is known by its attempt",
        RUNTIME + "tool_pauses.py",
        'met = partial(_met, ctx, (entry.path, pause["attempt"]), pause["id"], until)',
        'met = partial(_met, ctx, (entry.path, 1), pause["id"], until)',
        (_INPUT,),
    ),
    Mutant(
        "pause: the answer is recorded before what follows from it",
        RUNTIME + "tool_pauses.py",
        "            effects.note_once(closed)  # before all that follows from it\n",
        "",
        (_INPUT,),
    ),
    Mutant(
        "pause: a replay goes on behind it",
        RUNTIME + "tool_pauses.py",
        "    row = ctx.effects.journal.paused(entry.path)\n",
        "    row = None\n",
        (_INPUT,),
    ),
    Mutant(
        "pause: it must be the call that has paused",
        RUNTIME + "effects.py",
        "self.journal.started(path) or self.journal.paused(path)",
        "self.journal.started(path)",
        (_INPUT,),
    ),
    Mutant(
        "pause: the calls of an attempt have places of their own",
        RUNTIME + "tool_running.py",
        '    place = f"{path}/" if pause is None else place_after(path, pause)\n',
        '    place = f"{path}/"\n',
        (_INPUT,),
    ),
    Mutant(
        "pause: nobody asks for the calls of an attempt that has paused",
        RUNTIME + "replay.py",
        "if self._paused and any(call in self._paused and not self._is_behind_pause(path, call) for call in above):",
        "if False:",
        (_INPUT,),
    ),
    Mutant(
        "pause: the idempotency key is the call's, not the attempt's",
        RUNTIME + "context.py",
        '        place = above + slash + _BEHIND_PAUSE.sub("", own)\n',
        "",
        (_INPUT,),
    ),
    Mutant(
        "pause: so often in a call and no more",
        RUNTIME + "tool_pauses.py",
        "    if number > MAX_PAUSES:\n",
        "    if number > MAX_PAUSES + 1:\n",
        (_INPUT,),
    ),
    Mutant(
        "pause: not inside an at-most-once tool",
        RUNTIME + "tool_pauses.py",
        "        ctx.effects.check_may_wait(entry.path)\n",
        "",
        (_INPUT,),
    ),
    Mutant(
        "pause: no middleware swallows it",
        RUNTIME + "interceptors.py",
        "        except (Exception, ToolPaused) as error:\n",
        "        except Exception as error:\n",
        (_INPUT,),
    ),
    Mutant(
        "pause: a call that was let in stays in",
        RUNTIME + "tool_calls.py",
        "    if told is None and (refusal",
        "    if (refusal",
        (_INPUT,),
    ),
    Mutant(
        "pause: no model fills in a person's input",
        RUNTIME + "tool_calls.py",
        "        ready = {**ready, tool.input_parameter: told}\n",
        "        ready = {tool.input_parameter: told, **ready}\n",
        (_INPUT,),
    ),
    Mutant(
        "pause: an answer to each of several questions",
        RUNTIME + "answers.py",
        "    if values.keys() != asked.keys():\n",
        "    if False:\n",
        (_INPUT,),
    ),
    Mutant(
        "pause: not for a stranger's run",
        RUNTIME + "tool_pauses.py",
        "    if not reachable:\n",
        "    if False:\n",
        (_CHILD,),
    ),
    Mutant(
        "pause: an at-most-once tool does not hire anew after a retry",
        STORE + "retry.py",
        "        children = [child for child in children if str(child) not in ended]\n",
        "",
        (_CHILD,),
    ),
    Mutant(
        "pause: a child that is hired anew has its pause set aside",
        STORE + "retry.py",
        ' | Q(kind="tool.call", phase=Phase.PAUSED)',
        "",
        (_CHILD,),
    ),
    Mutant(
        "finish: nobody to hand over to is told",
        RUNTIME + "tool_finish.py",
        "        specs.find(finish.target if isinstance(finish.target, AgentId) else AgentId.parse(finish.target))\n",
        "",
        (_FINISH,),
    ),
    Mutant(
        "finish: a replay gives it again",
        RUNTIME + "tool_calls.py",
        "        finish=None if finish is None else tool_finish.restored(finish),\n",
        "",
        (_FINISH,),
    ),
    Mutant(
        "finish: a transactional tool's is looked at too",
        RUNTIME + "tool_calls.py",
        "    return _keep(ctx, watch, entry, tool_finish.checked(result))\n",
        "    return _keep(ctx, watch, entry, result)\n",
        (_FINISH,),
    ),
    Mutant(
        "pause: a late reply of the child is no message",
        RUNTIME + "tool_pauses.py",
        "else without_late_reply(pause.message)",
        "else pause.message",
        (UNIT + "test_late_replies.py",),
    ),
]

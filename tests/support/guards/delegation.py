"""Delegating: what of a child's end is an answer, who may be a team, and that a wait is no work."""

from __future__ import annotations

from tests.support.guards.mutant import RUNTIME, STORE, UNIT, Mutant

AGENTS = "ravi_django/agents/"
TEAM = ("tests/unit/agents/test_orchestrator.py",)
DELEGATING = (UNIT + "test_delegation.py",)
LATE = (UNIT + "test_late_replies.py",)

DELEGATION = [
    Mutant(
        "delegation: only a reply is an answer",
        AGENTS + "delegate.py",
        'if outcome.kind == "replied":',
        "if True:",
        (UNIT + "test_agent_tool.py",),
    ),
    Mutant(
        "delegation: a refused spawn is words",
        AGENTS + "delegate.py",
        "except (AgentNotFoundError, PermanentError) as error:",
        "except ZeroDivisionError as error:",
        DELEGATING,
    ),
    Mutant(
        "delegation: its tool is called by nobody",
        AGENTS + "delegate.py",
        '        raise ToolRefused(\n            f"{self.name} is no tool',
        '        return (\n            f"{self.name} is no tool',
        TEAM,
    ),
    Mutant(
        "delegation: the task is checked",
        AGENTS + "orchestrator.py",
        'tool.validate(call.arguments)["task"]',
        'call.arguments.get("task", call.arguments)',
        DELEGATING,
    ),
    Mutant(
        "delegation: no nesting without end",
        AGENTS + "orchestrator.py",
        "if is_too_deep(call.arguments):",
        "if False:",
        TEAM,
    ),
    Mutant(
        "delegation: a wait takes no tool's slot",
        AGENTS + "parallel.py",
        "async with slots if takes else nullcontext():",
        "async with slots:",
        DELEGATING,
    ),
    Mutant(
        "delegation: an answer is bounded",
        AGENTS + "orchestrator.py",
        "if len(text) <= _MOST_ANSWER:",
        "if True:",
        DELEGATING,
    ),
    Mutant(
        "delegation: with the configured priority",
        AGENTS + "orchestrator.py",
        "priority=Priority(config.priority),",
        "priority=None,",
        TEAM,
    ),
    Mutant(
        "team: one tool name each",
        AGENTS + "orchestrator.py",
        "if (other := found.get(name)) is not None:",
        "if (other := found.get(name)) is not None and False:",
        TEAM,
    ),
    Mutant(
        "team: no tool of a sub-agent's name",
        AGENTS + "orchestrator.py",
        "if tools.get(name) is not None:",
        "if False:",
        TEAM,
    ),
    Mutant(
        "team: who is registered by itself stays",
        RUNTIME + "registry.py",
        "if place not in _agents or place in _by_team:",
        "if True:",
        DELEGATING,
    ),
    Mutant(
        "team: its handoffs are no tools for others",
        RUNTIME + "registry.py",
        "if not isinstance(tool, DelegateTool):",
        "if True:",
        DELEGATING,
    ),
    Mutant(
        "delegation: a late reply is no message",
        STORE + "asking.py",
        "asks.filter(outcome=AskKind.TIMED_OUT, result__isnull=True).exists()",
        "asks.filter(outcome=AskKind.TIMED_OUT).exists()",
        LATE,
    ),
    Mutant(
        "delegation: that it is one is the asker's own affair",
        RUNTIME + "addressing.py",
        "for name, value in made.metadata.items() if name != LATE}",
        "for name, value in made.metadata.items()}",
        LATE,
    ),
    Mutant(
        "delegation: a task is no larger than an input",
        RUNTIME + "spawns.py",
        "refusal or too_large(message) or",
        "refusal or",
        DELEGATING,
    ),
    Mutant(
        "delegation: nor one that is handed over",
        RUNTIME + "handoff.py",
        "(too_large(body) if task else None)",
        "None",
        DELEGATING,
    ),
    Mutant(
        "delegation: two agents of one tool name",
        AGENTS + "toolbox.py",
        "and other.agent_id != tool.agent_id:",
        "and False:",
        ("tests/unit/agents/test_toolbox.py",),
    ),
]

"""A journaled tool call, and the built-in tools that need the database (`builtin/`).

Owns no table. It must survive a death between the effect and its row: `promises.py` has the promise of each kind of
tool. Read `call.py` first.
"""

from ravi_django.kernel import Tool


def built_in() -> list[Tool]:
    """The tools that need no configuration, those of other layers too."""
    from ravi_django.capabilities.tools import CalculatorTool, CurrentTimeTool
    from ravi_django.runtime.tools.builtin.ask_human import AskHumanTool
    from ravi_django.runtime.tools.builtin.board import TaskBoard
    from ravi_django.runtime.tools.builtin.read_result import ReadResultTool

    return [CalculatorTool(), CurrentTimeTool(), AskHumanTool(), ReadResultTool(), *TaskBoard().tools]

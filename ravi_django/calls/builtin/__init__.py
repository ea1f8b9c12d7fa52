"""The tools that come with the package. `ravi_django.tools` has them all.

Owns no table. It must survive arguments that a model makes up: each tool limits or refuses them. Those of
`calculator.py`, `clock.py` and `http_fetch.py` need no database. Read `clock.py` first.
"""

from ravi_django.kernel import Tool


def built_in() -> list[Tool]:
    """The tools that need no configuration, those of other layers too."""
    from ravi_django.calls.builtin.ask_human import AskHumanTool
    from ravi_django.calls.builtin.board import TaskBoard
    from ravi_django.calls.builtin.calculator import CalculatorTool
    from ravi_django.calls.builtin.clock import CurrentTimeTool
    from ravi_django.calls.builtin.read_result import ReadResultTool

    return [CalculatorTool(), CurrentTimeTool(), AskHumanTool(), ReadResultTool(), *TaskBoard().tools]

"""Built-in tools that read or write the site's database."""

from ravi_django.kernel import Tool


def built_in() -> list[Tool]:
    """The tools that need no configuration, those of other layers too."""
    from ravi_django.capabilities.tools import CalculatorTool, CurrentTimeTool
    from ravi_django.runtime.tools.ask_human import AskHumanTool
    from ravi_django.runtime.tools.board import TaskBoard
    from ravi_django.runtime.tools.results import ReadResultTool

    return [CalculatorTool(), CurrentTimeTool(), AskHumanTool(), ReadResultTool(), *TaskBoard().tools]

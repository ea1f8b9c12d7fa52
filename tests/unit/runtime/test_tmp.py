import pytest
from ravi_django import register, submit, tool
from ravi_django.agents import ReActAgent
from ravi_django.kernel import *
from ravi_django.testing import *
@pytest.mark.django_db(transaction=True)
def test_it():
    @tool
    def add(a:int,b:int)->int:
        "add"
        return a+b
    a=register(ReActAgent("t1",model=ScriptedModel([ToolUseBlock(tool_name="add",arguments={"a":1,"b":2},call_id="c"),"three"]),tools=[add]))
    run=submit(a,"hi"); 
    assert run_until_idle()==1
    run.refresh_from_db(); assert run.output=="three", run.error
    assert [e.kind for e in journal_of(run)]==["run.started","llm.call","tool.call","llm.call","run.completed"]

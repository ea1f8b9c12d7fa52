"""The loop as a LangGraph graph of a model node and a tool node, with its PostgreSQL checkpointer in sync durability.

Runs in the peers' environment: python loop_langgraph.py DATABASE_URL LEASE_S. LangGraph has no worker: the caller
resumes an interrupted graph in its own process, and nothing resumes the graph of a process that was killed.
"""

import uuid

import timing
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return timing.add(a, b)


def model_node(turns: int):
    def call_model(state: MessagesState) -> dict:
        done = sum(isinstance(message, AIMessage) for message in state["messages"])
        if done + 1 == turns:
            return {"messages": [AIMessage(timing.ANSWER)]}
        call = {"id": f"call_{done}", "name": "add", "args": {"a": 1, "b": done}}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    return call_model


def graph_of(turns: int, saver: PostgresSaver):
    graph = StateGraph(MessagesState)
    graph.add_node("model", model_node(turns))
    graph.add_node("tools", ToolNode([add]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def wait_node(state: MessagesState) -> dict:
    interrupt("go?")
    timing.mark()
    return {"messages": [AIMessage(timing.ANSWER)]}


def waiting_graph(saver: PostgresSaver):
    graph = StateGraph(MessagesState)
    graph.add_node("wait", wait_node)
    graph.add_edge(START, "wait")
    return graph.compile(checkpointer=saver)


def main(url: str, lease_s: int) -> None:
    begin = {"messages": [HumanMessage(timing.QUESTION)]}
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        graphs: dict = {}
        waits = waiting_graph(saver)

        def run(turns: int) -> None:
            graph = graphs[turns] = graphs.get(turns) or graph_of(turns, saver)
            final = graph.invoke(begin, thread(turns), durability="sync")
            timing.check(final["messages"][-1].content)

        def wake() -> float:
            config = thread(1)
            waits.invoke(begin, config, durability="sync")
            return timing.woken_by(lambda: waits.invoke(Command(resume="now"), config, durability="sync"))

        timing.serve(run, wake=wake)


def thread(turns: int):
    """The configuration of a new thread with room for so many turns."""
    return {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": 4 * turns + 10}


if __name__ == "__main__":
    main(*timing.arguments())

"""The loop as a LangGraph graph of a model node and a tool node, with its PostgreSQL checkpointer in sync durability.

Runs in the peers' environment: python loop_langgraph.py DATABASE_URL TURNS:REPETITIONS…
"""

import uuid

import timing
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


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


def main(url: str, plan: dict[int, int]) -> None:
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        graphs = {turns: graph_of(turns, saver) for turns in plan}

        def run(turns: int) -> None:
            config = {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": 4 * turns + 10}
            begin = {"messages": [HumanMessage(timing.QUESTION)]}
            final = graphs[turns].invoke(begin, config, durability="sync")
            timing.check(final["messages"][-1].content)

        timing.report(plan, run)


if __name__ == "__main__":
    main(*timing.arguments())

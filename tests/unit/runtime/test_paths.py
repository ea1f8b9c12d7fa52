"""A call's path says where in the code it is made: the same whichever of its neighbours finishes first."""

import asyncio
import random
from contextvars import Context, copy_context

import pytest
from hypothesis import given, settings, strategies as st

from tests.support import world
from tests.support.patience import BOUND_S


def paths_of(code, *, seed=0):
    """Run `code(call)` as a run's code; returns the path of each call by its label. Calls end in an order that the
    seed gives."""
    order = random.Random(seed)
    found = {}

    async def call(label):
        path = world.paths_current().next_path()
        assert label not in found
        found[label] = path
        for _ in range(order.randrange(6)):
            await asyncio.sleep(0)
        return label

    async def story():
        world.paths_scope.set(world.Scope())
        await code(call)

    async def main():
        undo = world.paths_install(asyncio.get_running_loop())
        try:
            await asyncio.create_task(story())
        finally:
            undo()

    asyncio.run(main())
    assert len(set(found.values())) == len(found)
    return found


def assert_stable(code):
    """The same paths in whatever order the calls end; returns them."""
    first = paths_of(code)
    for seed in range(1, 25):
        assert paths_of(code, seed=seed) == first
    return first


async def gathering(call):
    await call("first")
    await asyncio.gather(call("a"), call("b"))
    await call("last")


async def grouping(call):
    async with asyncio.TaskGroup() as group:
        for label in "ab":
            group.create_task(call(label))
        await call("first")
    await call("last")


async def waiting_for_the_first(call):
    await call("first")
    tasks = [asyncio.create_task(call(label)) for label in "ab"]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await call("last")
    await asyncio.wait(tasks)


@pytest.mark.parametrize("code", [gathering, grouping, waiting_for_the_first])
def test_branches_have_scopes_of_their_own_and_keep_their_numbers(code):
    assert assert_stable(code) == {"first": "1", "a": "t1.1", "b": "t2.1", "last": "2"}


def test_wait_for_keeps_the_numbers_around_it():
    async def code(call):
        async with asyncio.timeout(30):
            await call("before")
        await asyncio.wait_for(call("inside"), BOUND_S)
        await call("after")

    found = assert_stable(code)
    assert (found["before"], len(set(found.values()))) == ("1", 3)


def test_a_name_stands_for_a_place():
    async def code(call):
        for name in ("plan", "act", "plan"):
            with named(name):
                await call(f"{name}{len(seen)}")
                await call(f"{name}{len(seen)}b")
            seen.append(name)

    seen = []
    found = paths_of(code)
    assert [found[name] for name in ("plan0", "plan0b", "act1", "act1b")] == ["plan.1", "plan.2", "act.1", "act.2"]
    assert (found["plan2"], found["plan2b"]) == ("plan~2.1", "plan~2.2")


def test_a_task_that_names_its_place_is_not_numbered():
    """So that the paths of a turn's tools are the same whether they run as tasks or one by one."""

    async def together(call):
        async def tool(index):
            with named(f"call{index}"):
                await call(str(index))

        await asyncio.gather(*(tool(index) for index in range(3)))

    async def one_by_one(call):
        for index in range(3):
            with named(f"call{index}"):
                await call(str(index))

    assert assert_stable(together) == paths_of(one_by_one) == {"0": "call0.1", "1": "call1.1", "2": "call2.1"}


def test_a_task_that_calls_first_and_names_later_is_numbered():
    async def code(call):
        async def branch(name):
            await call(f"{name}1")
            with named("step"):
                await call(f"{name}2")

        await asyncio.gather(branch("a"), branch("b"))

    assert assert_stable(code) == {"a1": "t1.1", "a2": "t1.step.1", "b1": "t2.1", "b2": "t2.step.1"}


def named(name, call_id=""):
    return world.paths_entered(world.paths_current().for_name(name, call_id))


def test_tasks_outside_of_the_numbering_change_none():
    async def code(call):
        async def background():
            assert world.paths_current() is None
            await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))

        await call("a")
        with world.paths_entered(None):
            task = asyncio.create_task(background())
        other = asyncio.get_running_loop().create_task(background(), context=Context())
        await asyncio.gather(call("b"), call("c"))
        await task
        await other

    assert paths_of(code) == {"a": "1", "b": "t1.1", "c": "t2.1"}


def test_the_factory_that_was_there_before_is_used_and_put_back():
    made = []

    def factory(loop, coro, **kwargs):
        made.append(coro.__name__)
        return asyncio.Task(coro, loop=loop, **kwargs)

    async def nothing():
        pass

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        undo = world.paths_install(loop)
        await asyncio.create_task(nothing())
        undo()
        return loop.get_task_factory()

    assert asyncio.run(main()) is factory
    assert made[0] == "nothing"


@pytest.mark.parametrize("own", [False, True])
def test_a_context_of_ones_own_is_numbered_too(own):
    async def code(call):
        await asyncio.get_running_loop().create_task(call("a"), context=copy_context() if own else None)
        await call("b")

    assert paths_of(code) == {"a": "t1.1", "b": "1"}


# A tree of code: a leaf is a call, a list runs one after the other, a tuple at once.
TREES = st.recursive(
    st.just("call"),
    lambda inside: st.lists(inside, min_size=1, max_size=4) | st.lists(inside, min_size=1, max_size=4).map(tuple),
    max_leaves=14,
)


@settings(max_examples=60)
@given(tree=TREES, seeds=st.lists(st.integers(0, 2**32), min_size=2, max_size=4))
def test_any_tree_of_gathers_has_the_same_paths_in_any_order_of_ends(tree, seeds):
    async def code(call):
        async def walk(node, place):
            if node == "call":
                await call(place)
            elif isinstance(node, tuple):
                await asyncio.gather(*(walk(child, (*place, number)) for number, child in enumerate(node)))
            else:
                for number, child in enumerate(node):
                    await walk(child, (*place, number))

        await walk(tree, ())

    first, *others = [paths_of(code, seed=seed) for seed in seeds]

    assert all(other == first for other in others)

"""The same loop as a run of ours, in the in-process `Runtime`: the row that the peers are compared with.

Runs in the site's environment: python -m benchmarks.peers.loop_ravi_django.
"""

import asyncio

import django

from benchmarks.peers import timing


def main() -> None:
    django.setup()
    from benchmarks import steps
    from benchmarks.agents import loop_agent

    registered: set[int] = set()
    with asyncio.Runner() as runner:
        opened = steps.runtime()
        rt = runner.run(opened.__aenter__())

        async def run(turns: int) -> None:
            if turns not in registered:
                await rt.register(loop_agent(turns))
                registered.add(turns)
            await steps.run_once(rt, turns)

        timing.serve(lambda turns: runner.run(run(turns)))
        runner.run(opened.__aexit__(None, None, None))


if __name__ == "__main__":
    main()

"""Claims runs until none is left, once told to go; prints how many. A process of its own, started by durability.py."""

import os
import sys


def main() -> None:
    import django

    django.setup()
    from ravi_django.runtime.lease import claims

    name = f"claimer-{os.getpid()}"
    claims.claim_next(name, ["nobody/here"])  # the connection and the statements are there
    print("warm", flush=True)
    sys.stdin.readline()
    claimed = 0
    while claims.claim_next(name, ["test/bench-waiter"]) is not None:
        claimed += 1
    print(claimed)


main()

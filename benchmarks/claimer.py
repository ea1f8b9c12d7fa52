"""Claims runs until none is left, once told to go; prints how many. A process of its own, started by durability.py."""

import os
import sys


def main() -> None:
    import django

    django.setup()
    from ravi_django.engine.lease import claims
    from ravi_django.engine.worker.engine import BATCH

    name = f"claimer-{os.getpid()}"
    claims.claim_batch(name, ["nobody/here"], BATCH)  # the connection and the statements are there
    print("warm", flush=True)
    sys.stdin.readline()
    claimed = 0
    while leases := claims.claim_batch(name, ["test/bench-waiter"], BATCH):
        claimed += len(leases)
    print(claimed)


main()

"""What happens to a whole run: ending, cancelling, retrying, forking, handing over, beginning anew, erasing, pruning.

Owns Erasure. It must survive a death in the middle: each step is a transaction, and the sweep repeats what is left.
Read `endings.py` first.
"""

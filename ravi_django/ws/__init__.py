"""Websockets: what a run tree or a session does, frame by frame. Sockets only watch; no run depends on one.

A refusal accepts the handshake and then closes, so that a browser gets to see the code:

    4400  bad request: `after` is no number; an `error` frame says so first
    4401  no session and no ticket; the ticket was used, is old or unknown; or, later: the session or the token that
          opened the socket is gone, or the account is not active any more
    4403  the session cookie came from a page of another origin (or none was named); tickets need no origin.
          Later: the user may no longer read the run
    4404  no such run or session, or somebody else's
    4429  too many open sockets (`sockets` of RAVI["LIMITS"]); an `error` frame says so first
    1013  the site's database or event buffer is away: reconnect with the last `seq`
"""

"""Websockets: what a run tree or a session does, frame by frame. Sockets only watch; no run depends on one.

A refusal accepts the handshake and then closes, so that a browser gets to see the code:

    4400  bad request: `after` is no number; an `error` frame says so first
    4401  who are you: no session and no ticket, or the ticket was used, is old or unknown
    4403  the session cookie came from a page of another origin (or none was named); tickets need no origin
    4404  no such run or session, or somebody else's
    1013  the site's database or event buffer is away: reconnect with the last `seq`
"""

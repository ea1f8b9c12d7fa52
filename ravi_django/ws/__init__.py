"""Websockets: the frames of a run tree, of a session, or of requests to people. No run depends on a socket.

A refusal accepts the handshake and then closes, because browsers show the code only of an accepted socket:

    4400  bad request: `after` is not a number; an `error` frame comes first
    4401  no session and no ticket; the ticket was used, has expired or is unknown; or, later: the session or the token
          that opened the socket was deleted, or the account is no longer active
    4403  the session cookie came from a page of another origin, or without an origin; tickets need none.
          Later: the user may no longer read the run
    4404  the run or session does not exist, or belongs to another user
    4429  too many open sockets (`sockets` of RAVI["LIMITS"]); an `error` frame comes first
    1013  reconnect with the last `seq`: the site's database or event buffer cannot be reached, or the client has not
          taken a frame for 30 s

The server's own closes also mean reconnecting with the last `seq`: 1012 when it stops, 1011 or 1006 when the
connection was lost.
"""

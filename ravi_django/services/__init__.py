"""What the surfaces share: tickets and open sockets. The runtime imports nothing of it."""

"""Shared by REST, sockets, the admin and commands: fields, output shapes, problems, tickets, open sockets."""

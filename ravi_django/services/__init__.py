"""What REST, sockets, the admin and commands share: fields, shapes of output, problems, tickets, open sockets."""

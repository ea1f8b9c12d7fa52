"""Parts that a site may leave out: `RAVI["WINGS"]` names those that it has. No other folder imports them."""

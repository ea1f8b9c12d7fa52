"""The built-in tools that read or write the site's database."""

"""A study between machines that are connected: a server, its sites, and what each of them runs."""

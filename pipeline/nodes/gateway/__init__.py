"""One instance of the gateway: connections of nodes and sessions, and what goes between them."""

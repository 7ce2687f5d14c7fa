"""One instance of the gateway: connections of nodes and sessions, and what goes between them.

`app` takes connections, which `links` holds. `intake` makes jobs of what sessions ask, `dispatch` schedules them,
`lines` gives free slots to whoever is next, and `attempts` hears what nodes say. `delivery` sends to whoever is
connected anywhere, and `mail` reads what others sent. `instance` puts all of it together.
"""

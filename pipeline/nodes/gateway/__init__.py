"""One gateway instance: the connections of nodes and sessions, and the jobs between them.

`app` accepts connections, and `links` holds them. `intake` turns requests into jobs, `dispatch` schedules the jobs,
`lines` gives free slots to the jobs in line, and `attempts` handles the messages of nodes. `delivery` sends to nodes
and sessions of any instance, and `mail` reads the messages of other instances. `instance` assembles these parts.
"""

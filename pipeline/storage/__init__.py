"""Where rows live: SQLite or PostgreSQL behind one `Database`, its schema, and the context that a process works in."""

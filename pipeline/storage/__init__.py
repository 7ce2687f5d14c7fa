"""Storage: SQLite or PostgreSQL behind one `Database`, its schema, and the context of a process."""

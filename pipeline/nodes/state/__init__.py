"""What all instances of the gateway share through Redis: one module a subject, one atomic act a Lua file."""

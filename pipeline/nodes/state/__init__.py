"""State that all gateway instances share through Redis: one subject per module, one atomic act per Lua file."""

"""How people and programs reach Penstock. Calls services and queries only."""

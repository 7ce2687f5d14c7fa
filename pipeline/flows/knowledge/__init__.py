"""Knowledge bases: read → chunk → embed → write. Source 003."""

"""AI capabilities behind small Protocols. The only place that imports AI SDKs."""

"""The work of webhooks: the fan-out of events, and deliveries."""

"""The unit of work of webhooks: a delivery."""

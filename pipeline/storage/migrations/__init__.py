"""Migrations. They import nothing of Penstock: what they do must not change when it does."""

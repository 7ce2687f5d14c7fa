"""Migrations. They import nothing from Penstock: their effects must not change with it."""

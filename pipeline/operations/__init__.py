"""Penstock's operations: typed functions, one module for each flow, that put policy around the services.

An operation checks the caller's scope, charges quota and spending, calls the service, and returns a view.
`tasks.<flow>` exports them as the Python API; REST routes, console screens, MCP tools and commands call them.
"""

"""What one may ask of Penstock: plain typed functions, one module a flow, and the policy around what services do.

A caller may do it, quota and spending are charged, the service acts, a view comes back. `tasks.<flow>` exports them as
the Python API; REST routes, console screens, MCP tools and commands call them.
"""

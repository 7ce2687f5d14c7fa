"""MCP, the tools of assistants: over HTTP at `/mcp` of the API, and over stdio by `penstock mcp`.

`tool` defines a tool, `tools` holds them, `server` lists and calls them, `http` and `stdio` carry the protocol. Tools
call the same operations as the API, under the same scopes and quotas.
"""

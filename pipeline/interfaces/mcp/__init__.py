"""MCP: what assistants may do here, over HTTP at `/mcp` of the API, and over stdio by `penstock mcp`.

`tool` says what a tool is, `tools` holds them, `server` lists and calls them, `http` and `stdio` carry the protocol.
They ask the same services as the API, under the same rights and quotas.
"""

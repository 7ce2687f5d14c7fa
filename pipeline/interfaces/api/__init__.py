"""The application that serves REST, the compatible APIs, the console and MCP on one port."""

"""All tools, in the order of the list."""

from pipeline.interfaces.mcp.tools import connector, documents, failures, knowledge, pages, screenshots

TOOLS = [
    *documents.BOX.tools,
    *pages.BOX.tools,
    *failures.BOX.tools,
    *screenshots.BOX.tools,
    *knowledge.BOX.tools,
    *connector.BOX.tools,
]

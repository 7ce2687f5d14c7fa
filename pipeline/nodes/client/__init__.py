"""Clients of a gateway: sessions, which request jobs, and nodes, which do them.

>>> async with Session("wss://gateway.example.org", token) as session:
...     reply = await session.request("text", body={"prompt": "Say hello"})
...     print(reply.result["text"])

Outside of asyncio, `ask` sends a single request.
"""

from pipeline.nodes.client.request import JobFailed, SessionReply
from pipeline.nodes.client.session import Session, SessionLimits, ask
from pipeline.nodes.protocol import Attachment

__all__ = ["Attachment", "JobFailed", "Session", "SessionLimits", "SessionReply", "ask"]

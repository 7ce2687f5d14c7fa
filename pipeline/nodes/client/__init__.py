"""What connects to a gateway: sessions, which ask, and nodes, which do the work.

>>> async with Session("wss://gateway.example.org", token) as session:
...     reply = await session.request("text", body={"prompt": "Say hello"})
...     print(reply.result["text"])

Outside of asyncio, and for a single request, there is `ask`.
"""

from pipeline.nodes.client.request import JobFailed, SessionReply
from pipeline.nodes.client.session import Session, SessionLimits, ask
from pipeline.nodes.protocol import Attachment

__all__ = ["Attachment", "JobFailed", "Session", "SessionLimits", "SessionReply", "ask"]

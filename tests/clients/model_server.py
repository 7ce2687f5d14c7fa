"""A model behind an OpenAI-compatible API, which Penstock's own node offers. It answers like node/models.js."""

import json
import re
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_PICTURE = re.compile(r"data:([^;]+);base64,(.*)", re.DOTALL)
_LONGEST_S = 60


@contextmanager
def model_server(go: Path) -> Iterator[str]:
    """Run the server; yield its base URL. It answers prompts that begin with `wait` once `go` exists."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = _answer(request["messages"][-1]["content"], go)
            message = {"role": "assistant", "content": answer}
            reply = {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": request["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
            data = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(content: Any, go: Path) -> str:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    prompt = "".join(part["text"] for part in parts if part["type"] == "text")
    pictures = [_PICTURE.fullmatch(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"]
    deadline = time.monotonic() + _LONGEST_S
    while prompt.startswith("wait") and not go.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    if pictures:
        return "\n".join(f"{match[1]} {len(b64decode(match[2]))}" for match in pictures if match)
    return prompt[::-1]

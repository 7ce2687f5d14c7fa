"""Put the pieces of a chat completion together as they stream in (server-sent events)."""

from collections.abc import Callable
from typing import Any

from pipeline.engine import foreign_json

_MAX_PIECES = 1_000_000


class Stream:
    """The reply so far. `data` has the shape of a reply that came as a whole."""

    def __init__(self, watch: Callable[[str], bool]) -> None:
        """`watch` takes each piece of text, and returns True to end the stream."""
        self._watch = watch
        self._content: list[str] = []
        self._refusal: list[str] = []
        self._facts: dict[str, Any] = {}
        self._line: list[bytes] = []
        """The parts of the line that has not ended."""
        self._reason: object = None
        self._has_choice = False
        self.pieces = 0
        self.cut = False
        self.ended = False
        """The service said that the answer is complete."""
        self.broken = False
        """A piece could not be parsed."""

    def feed(self, data: bytes) -> bool:
        """Take some bytes of the stream; return whether the stream may end."""
        *ended, rest = data.split(b"\n")
        for line in ended:
            whole = b"".join([*self._line, line])
            self._line.clear()
            if self._take_line(whole):
                return True
        self._line.append(rest)
        return False

    def _take_line(self, line: bytes) -> bool:
        field, _, value = line.partition(b":")
        if field != b"data":
            return False
        value = value.strip()
        if value == b"[DONE]":
            self.ended = True
            return True
        try:
            event = foreign_json.loads(value)
        except (ValueError, RecursionError, foreign_json.TooManyParts):
            event = None
        if not isinstance(event, dict):
            self.broken = True
            return True
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        choice = choice if isinstance(choice, dict) else {}
        if error := event.get("error") or choice.get("error"):
            self._facts, self._has_choice, self.ended = {"error": error}, False, True
            return True
        self._facts |= {name: event[name] for name in ("model", "usage") if event.get(name)}
        return self._take(choice) if choice else False

    def _take(self, choice: dict[str, Any]) -> bool:
        self._has_choice = True
        if choice.get("finish_reason"):
            self._reason, self.ended = choice["finish_reason"], True
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        if isinstance(refusal := delta.get("refusal"), str):
            self._refusal.append(refusal)
        text = text_of(delta.get("content"))
        if text is not None:
            self._content.append(text)
        if text or delta.get("reasoning_content") or delta.get("reasoning"):
            self.pieces += 1
        self.cut = self.pieces > _MAX_PIECES or bool(text and self._watch(text))
        self.ended = self.ended or self.cut
        return self.cut

    @property
    def only_reasons(self) -> bool:
        """Whether the model has reasoned so far, and has written nothing."""
        return self.pieces > 0 and not any(self._content)

    @property
    def data(self) -> dict[str, Any]:
        """The reply as a JSON object, as if it had come as a whole."""
        content = "".join(self._content) if self._content else None
        message = {"content": content, "refusal": "".join(self._refusal)}
        choices = [{"message": message, "finish_reason": self._reason}] if self._has_choice else []
        return {**self._facts, "choices": choices}


def text_of(content: object) -> str | None:
    """Return the text of a message's content, a string or a list of parts; None without text."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        texts = [text for text in parts if isinstance(text, str)]
        return "".join(texts) if texts else None
    return content if isinstance(content, str) else None

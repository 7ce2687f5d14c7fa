"""What a child process does with frames of screens, by the task's name."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.reading.sandbox.limits import Task


def _frame(task: Task) -> dict[str, Any]:
    from pipeline.reading.ocr.fingerprint import read_frame  # noqa: PLC0415  # only who looks at frames needs it

    found = read_frame(task.path.read_bytes())
    sketch = b64encode(found.sketch.tobytes()).decode()
    width, height = found.sketch.size
    return {"phash": found.phash, "format": found.format, "sketch": sketch, "width": width, "height": height}


def _jpeg(task: Task) -> dict[str, Any]:
    from pipeline.reading.ocr.fingerprint import as_jpeg, load_image  # noqa: PLC0415  # as above

    return {"jpeg": b64encode(as_jpeg(load_image(task.path), task["side"])).decode()}


def _lines(task: Task) -> dict[str, Any]:
    from pipeline.reading.ocr import recognition  # noqa: PLC0415  # as above
    from pipeline.reading.ocr.fingerprint import load_image  # noqa: PLC0415  # as above

    image = load_image(task.path)
    across, down = image.size
    found = recognition.recognise(image, task.limits.ocr_threads)
    shares = [(one.text, one.left / across, one.top / down, one.right / across, one.bottom / down) for one in found]
    return {"lines": shares}


TASKS: Mapping[str, Callable[[Task], dict[str, Any]]] = {"frame": _frame, "frame_jpeg": _jpeg, "frame_lines": _lines}

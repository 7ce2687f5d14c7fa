"""Words about errors for callers."""

from pathlib import Path

import pytest
from PIL import Image, UnidentifiedImageError

from pipeline.engine.errors import UnitError, UserError, told


def test_callers_learn_no_path_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "scan 1.png").write_bytes(b"no picture")
    with pytest.raises(FileNotFoundError) as missing:
        (tmp_path / "absent.png").read_bytes()
    with pytest.raises(UnidentifiedImageError) as unknown:
        Image.open(tmp_path / "scan 1.png")
    errors = (
        missing.value,
        unknown.value,
        UserError(f"{tmp_path}/data: no permission", code="io_error"),
        RuntimeError(f"Load model from {tmp_path}/models/a.onnx failed: see https://example.org/a/b or 1/2 or a/b/c"),
    )
    words = [told(error) for error in errors]
    assert not any(str(tmp_path) in each or tmp_path.name in each for each in words)
    assert words[0] == "No such file or directory"
    assert "scan 1.png" in words[1]
    assert words[3] == "Load model from a.onnx failed: see https://example.org/a/b or 1/2 or a/b/c"
    assert told(UnitError("the page is blank", code="blank")) == "the page is blank"

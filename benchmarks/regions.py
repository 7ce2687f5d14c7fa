"""The layout model's regions of a page: `python -m benchmarks.regions PDF PAGE [PNG]`.

Prints each region, the highest score first, and whether `auto` would call the model. With a PNG file, draws the regions
over the page.
"""

import argparse
import json
from pathlib import Path

from PIL import Image, ImageDraw

from pipeline.reading.layout import doubt
from pipeline.reading.layout import page as layout
from pipeline.reading.layout.page import DocumentProfile, PageContent
from pipeline.reading.layout.regions import cleaned
from pipeline.reading.ocr import layout_model
from pipeline.reading.pdf import conversion, pdfium, text_layer
from pipeline.reading.pdf.pages import Options

COLOURS = {
    "text": "gray",
    "title": "red",
    "figure": "green",
    "figure_caption": "olive",
    "table": "blue",
    "table_caption": "navy",
    "header": "magenta",
    "footer": "purple",
    "reference": "orange",
    "equation": "teal",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regions", description=__doc__.splitlines()[0])
    parser.add_argument("pdf", type=Path)
    parser.add_argument("page", type=int)
    parser.add_argument("png", type=Path, nargs="?")
    arguments = parser.parse_args()
    content, picture = _read_page(arguments.pdf, arguments.page)
    survey = conversion.survey(arguments.pdf, [arguments.page], Options(), lambda: None)
    profile = DocumentProfile.from_dict(json.loads(survey))
    fit = layout.cleaned(content, profile)
    requested = doubt.wants_regions(fit, layout.profile_for(fit, profile))
    print("`auto` calls the model" if requested else "`auto` does not call the model")
    draw = ImageDraw.Draw(picture)
    scale = picture.width / content.width
    regions = cleaned(layout_model.regions(picture, content, 1), content.width, content.height)
    for kind, box, score in regions:
        print(f"{kind:15} {score:.2f}  " + " ".join(f"{side:7.1f}" for side in box))
        sides = [side * scale for side in box]
        draw.rectangle(sides, outline=COLOURS[kind], width=3)
        draw.text((sides[0] + 4, sides[1]), f"{kind} {score:.2f}", fill=COLOURS[kind])
    if arguments.png:
        picture.save(arguments.png)


def _read_page(source: Path, number: int) -> tuple[PageContent, Image.Image]:
    """Return the lines of the text layer and a picture of the page."""
    with pdfium.open_document(source) as document, document.page(number) as page:
        lines = text_layer.read(page).lines
        return PageContent(*page.size, tuple(lines)), page.render(150, layout_model.PIXELS)


if __name__ == "__main__":
    main()

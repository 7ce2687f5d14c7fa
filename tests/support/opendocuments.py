"""OpenDocument files made of their body's XML."""

import zipfile
from pathlib import Path

_NAMES = {
    name: f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0" for name in ("office", "text", "table", "style")
} | {
    "draw": "urn:oasis:names:tc:opendocument:xmlns:drawing:1.0",
    "presentation": "urn:oasis:names:tc:opendocument:xmlns:presentation:1.0",
    "fo": "urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0",
    "xlink": "http://www.w3.org/1999/xlink",
}
_STYLES = (
    '<style:style style:name="B" style:family="text"><style:text-properties fo:font-weight="bold"/></style:style>'
    '<text:list-style style:name="N"><text:list-level-style-number text:level="1"/></text:list-style>'
)


def open_document(path: Path, kind: str, body: str, manifest: str = "") -> Path:
    """Write an OpenDocument file of a `kind` (text, presentation, spreadsheet) and return its path. The text style `B`
    is bold, the list style `N` numbered."""
    names = " ".join(f'xmlns:{name}="{uri}"' for name, uri in _NAMES.items())
    content = (
        f'<?xml version="1.0"?><office:document-content {names} office:version="1.3"><office:automatic-styles>{_STYLES}'
        f"</office:automatic-styles><office:body><office:{kind}>{body}</office:{kind}></office:body>"
        "</office:document-content>"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", f"application/vnd.oasis.opendocument.{kind}")
        archive.writestr("content.xml", content)
        archive.writestr("META-INF/manifest.xml", f"<manifest:manifest>{manifest}</manifest:manifest>")
    return path


def slide(title: str, text: str) -> str:
    """Return the XML of a slide."""
    return (
        f'<draw:page><draw:frame presentation:class="title"><draw:text-box><text:p>{title}</text:p></draw:text-box>'
        f"</draw:frame><draw:frame><draw:text-box><text:p>{text}</text:p></draw:text-box></draw:frame></draw:page>"
    )

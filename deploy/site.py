"""A hook of mkdocs: the site has docs/ only, so links that leave it become the path of the file in the repository."""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]*)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, /, *, page: Any, **_: object) -> str:
    """Return the page with its outward links replaced."""
    folder = posixpath.dirname(page.file.src_uri)

    def outward(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        return link[0] if path.startswith("docs/") else f"{link[1]} (`{path}`)"

    return _LINK.sub(outward, markdown)

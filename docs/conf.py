"""The site: Sphinx with MyST and the theme Furo; ``make docs`` builds it.

Nothing in it is loaded from the internet: the theme uses the fonts of the system, and the library
that draws the pictures is copied into the site (docs/decisions/0052).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.parsers.rst import Directive

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Magnetar"
project_copyright = "the Magnetar authors, Apache License 2.0"
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
suppress_warnings = ["misc.highlighting_failure"]  # JSON with "..." in it
html_theme = "furo"
html_title = "Magnetar"
html_static_path = ["_static", *filter(None, [os.environ.get("MAGNETAR_DOCS_SCRIPTS")])]
html_js_files = ["mermaid.min.js", "pictures.js"]
html_copy_source = False

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)]+)\)")


class Mermaid(Directive):
    """A picture drawn in the browser from the text of the block."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        text = "\n".join(self.content).replace("&", "&amp;").replace("<", "&lt;")
        return [nodes.raw("", f'<pre class="mermaid">\n{text}\n</pre>', format="html")]


def name_what_is_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to files of the repository that are no pages of the site become their paths."""

    def replace(match: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join(os.path.dirname(page), match[2]))
        return f"`{path.removeprefix('../')}`" if path.startswith("../") else match[0]

    source[0] = _OUTSIDE.sub(replace, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("mermaid", Mermaid)
    app.connect("source-read", name_what_is_outside)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

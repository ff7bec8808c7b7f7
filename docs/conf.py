"""
Make a site of the pages beside this file.

    python -m sphinx --fail-on-warning docs SITE
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.util import logging

from pytest_gpuperf import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_REPOSITORY = "https://github.com/pytest-gpuperf/pytest-gpuperf"
_ROOT = Path(__file__).parents[1]
_BEYOND = re.compile(r"\]\(\.\./([^)#]+)")  # a link to what is not a page
_FILE_NAME = re.compile(r"\[(?:docs/)?[\w-]+\.md\]\(")  # shown where a site has a title

project = "pytest-gpuperf"
version = release = __version__
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]  # of directives: code is fenced
myst_heading_anchors = 4  # every heading of ours has one, as on GitHub

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {
    "source_repository": f"{_REPOSITORY}/",
    "source_branch": "main",
    "source_directory": "docs/",
}


def setup(app: Sphinx) -> None:
    """Look at each text before it is parsed."""
    app.connect("source-read", lambda _app, page, texts: _change(texts, page))
    app.connect(
        "include-read", lambda _app, path, page, texts: _include(texts, path, page)
    )


def _include(texts: list[str], path: Path, page: str) -> None:
    """Change an included text. An example becomes its docstring and a block of code."""
    if path.suffix == ".py":
        module = ast.parse(texts[0])
        code = "\n".join(texts[0].splitlines()[module.body[0].end_lineno :]).strip()
        # Its title is one of several on the page.
        texts[0] = f"#{ast.get_docstring(module)}\n\n```python\n{code}\n```\n"
    _change(texts, page)


def _change(texts: list[str], page: str) -> None:
    """Make links of the repository links of a site, in the one text of a list."""

    def published(link: re.Match[str]) -> str:
        path = _ROOT / link[1]
        if not path.exists():
            logging.getLogger(__name__).warning("no file %s", link[1], location=page)
        return f"]({_REPOSITORY}/{'tree' if path.is_dir() else 'blob'}/main/{link[1]}"

    texts[0] = _BEYOND.sub(published, _FILE_NAME.sub("[](", texts[0]))

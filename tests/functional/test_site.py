"""The site of docs/, and the links that lead to it from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import pytest_gpuperf
from pytest_gpuperf.errors import SITE

pytest.importorskip("sphinx", reason="makes the site: pip install --group docs")

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/pytest-gpuperf/pytest-gpuperf/blob/main/"
# what a browser fetches by itself: not the target of a link
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//"""
    r"""|<link\b[^>]*\brel="(?:stylesheet|preload|icon)"[^>]*\bhref="(?:https?:)?//"""
    r"""|@import|url\(["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module", name="site")
def site_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site; a warning, as of a broken link, is an error."""
    if built := os.environ.get("BUILT_SITE"):  # by tox, in the same way
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--fail-on-warning", "--keep-going", "-d", f"{folder}.trees")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_no_page_fetches_anything(site: Path) -> None:
    """No font, script or style comes from a network: what is read is nobody's business."""
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    found = {
        file.name: match[0]
        for file in files
        if (match := FETCHED.search(file.read_text("utf-8")))
    }

    assert len(files) > len([*(ROOT / "docs").glob("*.md")])
    assert not found


def test_what_a_package_index_shows_leads_somewhere(site: Path) -> None:
    """The README's links are absolute there; pages, anchors and files exist."""
    shown = str(metadata.metadata("pytest-gpuperf"))
    links = re.findall(r"\]\(([^)]+)\)", shown)

    assert any(link.startswith(SITE) for link in links)
    for link in links:
        page, _, anchor = link.removeprefix(f"{SITE}/").partition("#")
        if link.startswith(SITE):
            assert f'id="{anchor}"' in (site / page).read_text("utf-8") or not anchor
        elif link.startswith(REPOSITORY):
            assert (ROOT / link.removeprefix(REPOSITORY)).exists(), link
        else:
            assert link.startswith("https://"), link


def test_remedies_lead_to_pages(site: Path) -> None:
    """Each page whose address is in a message exists."""
    folder = Path(pytest_gpuperf.__file__).parent
    texts = [path.read_text("utf-8") for path in folder.rglob("*.py")]
    pages = {page for text in texts for page in re.findall(r"{SITE}/([\w.-]+)", text)}

    assert {"scorecard.html", "hardware.html"} <= pages
    for page in pages:
        assert (site / page).is_file(), page

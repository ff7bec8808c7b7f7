"""A run as one HTML file: template, style and script put together and locked."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.errors import ReportError
from pytest_gpuperf.model.frozen import collector_paused
from pytest_gpuperf.model.run import Run
from pytest_gpuperf.report.escape import escape
from pytest_gpuperf.report.html.page import STATUSES, Page

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

__all__ = ["html_bytes"]

_FOLDER = Path(__file__).with_name("templates")
_REMEDY = "pip install 'pytest-gpuperf[html]'"
_MICRO = re.compile(r"(?<=\d )us\b")
_MINUS = re.compile(r"(?<![\w\])])-(?=\d)")
# a number and its unit stay on one line
_UNIT = re.compile(r"(?<=\d) (?=[µnmkMGTP]?(?:s|B|B/s|FLOP|FLOP/s|J|W|Hz)\b|%|x\b)")
_JOINT = re.compile(r"(?<=\w[_\[,./:])(?=\w)")  # none inside an entity
_THIN = "\u202f"


def html_bytes(run: Run, older: Sequence[Run] = ()) -> bytes:
    """
    Return a run as one HTML file [UTF-8] that needs no network.

    Args:
        run: The run, judged.

        older: Earlier runs whose samples are shown beside it, oldest first.

    Raises:
        ReportError: Jinja2 is not installed.
    """
    environment = _environment()
    style, script = (_part(name) for name in ("style.css", "script.js"))
    unscripted = _unscripted()
    with collector_paused():
        page = Page(run, older)
        text = environment.get_template("page.html.j2").render(
            page=page,
            run=run,
            style=style,
            script=script,
            unscripted=unscripted,
            policy=_policy(styles=(style, unscripted), script=script),
        )
    return text.encode(errors="backslashreplace")  # lone surrogates


def _environment() -> Environment:
    """Return what fills in the template: every text is escaped."""
    try:
        import jinja2
    except ImportError as error:
        message = "the HTML report needs Jinja2, which is not installed"
        raise ReportError(message, remedy=_REMEDY) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = _typeset
    environment.filters["breakable"] = _breakable
    return environment


def _visible(value: object) -> object:
    """Return a text without control characters and marks of writing direction."""
    return escape(value) if type(value) is str else value  # a Markup is ours


@functools.lru_cache(maxsize=4096)  # small values come again and again
def _typeset(text: str) -> Markup:
    """Return a number with its unit as a printer sets it; the text is escaped."""
    from markupsafe import Markup
    from markupsafe import escape as escaped

    plain = str(escaped(escape(text)))
    plain = _UNIT.sub(_THIN, _MINUS.sub("−", _MICRO.sub("µs", plain)))
    return Markup(plain)  # noqa: S704 - escaped above


def _breakable(text: str) -> Markup:
    """Return a name that a browser breaks between its parts; the text is escaped."""
    from markupsafe import Markup
    from markupsafe import escape as escaped

    plain = _JOINT.sub("<wbr>", str(escaped(escape(text))))
    return Markup(plain)  # noqa: S704 - escaped above


def _part(name: str) -> str:
    """Return the style or the script: ours, and without an end tag of its own."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def _unscripted() -> str:
    """Return the style that filters rows where no script does."""
    rules = (f"body:has(#f-{s.name}:not(:checked)) .t.v-{s.name}" for s in STATUSES)
    return f"{','.join(rules)}{{display:none}}.scripted{{display:none!important}}"


def _policy(*, styles: Sequence[str], script: str) -> str:
    """Return the content security policy: these styles, this script, nothing else."""
    allowed = " ".join(f"'{_digest(style)}'" for style in styles)
    return (
        f"default-src 'none'; style-src {allowed}; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    """Return the source of a content security policy for an inline text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"

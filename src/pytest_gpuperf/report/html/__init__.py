"""Room html: a run as one page that a browser opens without a network.

In: runs with their verdicts, the run to be shown, and older runs for comparison.
Out: one HTML file with style, figures and script inside, foreign text escaped.
Never: a decision, a sentence that another report has, a third-party library in the page.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.disk import write_whole
from pytest_gpuperf.errors import ReportError
from pytest_gpuperf.model.frozen import collector_paused
from pytest_gpuperf.report.escape import escape

if TYPE_CHECKING:
    import jinja2
    from jinja2.bccache import Bucket
    from markupsafe import Markup

    from pytest_gpuperf.report.html.page import Page

__all__ = ["rendered", "still_page"]

_FOLDER = Path(__file__).with_name("templates")
_CACHE = _FOLDER / "__pycache__"
_REMEDY = "pip install 'pytest-gpuperf[html]'"
_MICRO = re.compile(r"(?<=\d )us\b")
_ARROW = re.compile(r"(?<= )-&gt;(?= )")  # As escaped.
_MINUS = re.compile(r"(?<![\w\])])-(?=\d)")
# A number and its unit stay on one line.
_UNIT = re.compile(r"(?<=\d) (?=[µnmkKMGTP]?(?:s|i?B|B/s|FLOP|FLOP/s|J|W|Hz)\b|%|x\b)")
_JOINT = re.compile(r"(?<=\w[_\[,./:])(?=\w)")  # Never inside an entity.
_THIN = "\u202f"


def rendered(make_page: Callable[[], Page]) -> bytes:
    """
    Return a page as HTML.

    Args:
        make_page: Creates the page. It is called only after Jinja2 was imported.

    Raises:
        ReportError: Jinja2 is not installed.
    """
    environment = _environment()
    style, script = (
        (_FOLDER / name).read_text(encoding="utf-8")
        for name in ("style.css", "script.js")
    )
    with collector_paused():
        page = make_page()
        # Filters rows without a script.
        rules = ",".join(
            f"body:has(#f-{status.name}:not(:checked)) .t.v-{status.name}"
            for status in page.statuses
        )
        unscripted = f"{rules}{{display:none}}.scripted{{display:none!important}}"
        allowed = " ".join(f"'{_digest(each)}'" for each in (style, unscripted))
        policy = (
            f"default-src 'none'; style-src {allowed}; script-src '{_digest(script)}'; "
            "base-uri 'none'; form-action 'none'"
        )
        text = environment.get_template("page.html.j2").render(
            page=page,
            run=page.run,
            style=style,
            script=script,
            unscripted=unscripted,
            policy=policy,
        )
    return text.encode(errors="backslashreplace")  # Lone surrogates.


def still_page(template: str, **content: object) -> bytes:
    """
    Return a page without a script as HTML.

    Args:
        template: Name of the template.

        content: The values that it shows.

    Raises:
        ReportError: Jinja2 is not installed.
    """
    page = _environment().get_template(template)
    style = (_FOLDER / "style.css").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; base-uri 'none'; "
        "form-action 'none'"
    )
    text = page.render(style=style, policy=policy, **content)
    return text.encode(errors="backslashreplace")  # Lone surrogates.


def _environment() -> jinja2.Environment:
    """
    Return the template environment, which escapes every text.

    Raises:
        ReportError: Jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        message = "the HTML report needs Jinja2, which is not installed"
        raise ReportError(message, remedy=_REMEDY) from error
    from markupsafe import Markup
    from markupsafe import escape as escaped

    # Places and names repeat.
    @functools.lru_cache(maxsize=8192)
    def of_text(text: str) -> str:
        return str(escaped(escape(text)))

    def visible(value: object) -> object:
        return value if type(value) is Markup else of_text(str(value))

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        bytecode_cache=_byte_code(),
        autoescape=False,  # noqa: S701 - `visible` escapes all that is written
        undefined=jinja2.StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = _typeset
    environment.filters["breakable"] = _breakable
    return environment


def _byte_code() -> jinja2.BytecodeCache:
    import jinja2

    # The byte code of one release need not suit another, and that of templates which
    # Jinja2 escapes itself would escape twice.
    release = f"{sys.implementation.cache_tag}.jinja-{jinja2.__version__}"
    suffix = f".{release}.visible.pyc"

    class ByteCode(jinja2.BytecodeCache):
        def get_cache_key(self, name: str, filename: str | None = None) -> str:
            del filename
            return f"{name}{suffix}"

        def load_bytecode(self, bucket: Bucket) -> None:
            # None yet, or a folder of another user.
            with contextlib.suppress(OSError):
                bucket.bytecode_from_string((_CACHE / bucket.key).read_bytes())

        def dump_bytecode(self, bucket: Bucket) -> None:
            if sys.dont_write_bytecode:
                return
            with contextlib.suppress(OSError):  # Installed by another user.
                _CACHE.mkdir(exist_ok=True)
                write_whole(
                    _CACHE / bucket.key, bucket.bytecode_to_string(), sync=False
                )

    return ByteCode()


@functools.lru_cache(maxsize=4096)  # Small values repeat often.
def _typeset(text: str) -> Markup:
    """Return an escaped number with typographic signs and a thin space before the unit."""
    from markupsafe import Markup
    from markupsafe import escape as escaped

    plain = str(escaped(escape(text)))
    plain = _MINUS.sub("−", _MICRO.sub("µs", _ARROW.sub("→", plain)))
    plain = _UNIT.sub(_THIN, plain)
    return Markup(plain)  # noqa: S704 - escaped above


def _breakable(text: str) -> Markup:
    from markupsafe import Markup
    from markupsafe import escape as escaped

    plain = _JOINT.sub("<wbr>", str(escaped(escape(text))))
    return Markup(plain)  # noqa: S704 - escaped above


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"

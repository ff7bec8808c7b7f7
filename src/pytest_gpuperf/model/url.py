"""URLs as they may be printed."""

from __future__ import annotations

import re

# The usual suffixes of a file of SQLite.
_OF_SQLITE = (".db", ".sqlite", ".sqlite3")
# The beginning of a URL without its slashes.
_SQLITE = re.compile(r"^sqlite3?:", re.IGNORECASE)
# The beginning of the URL of a server, but for one with its colon and both slashes.
_SERVER = re.compile(r"^postgres(?:ql)?(?::/?(?!/)|//)", re.IGNORECASE)
# A password may hold any character: it ends at the last "@" of the word, and in the URL of
# a store at the last one of the text. A URL taken for a path has lost a slash.
_OF_STORE = re.compile(r"^(postgres(?:ql)?(?::/{0,2}|//)[^/@\s:]*:).*@")
_PASSWORD = re.compile(r"((?:\w:/{1,2}|\bpostgres(?:ql)?(?::|//))[^/@\s:]*:)[^\s'\"]*@")
# Of a URL that ends in its password, as in a shell that was given a blank.
_NO_PORT = re.compile(
    r"(\bpostgres(?:ql)?:/{0,2}[^/@\s:?[]+:)(?!\*{3}@|[\d,]*(?:[/?#,:;)\s'\"]|$))[^/\s'\",]+"
)
# The only part of a URL in front of the host, as that of an index of packages.
_TOKEN = re.compile(r"\b((?:git\+)?https?://)[^/@\s:]+@")
_SETTING = re.compile(r"\b((?:ssl)?password=)[^&\s'\"]*")


def database_url(path: str) -> str | None:
    """
    Return the URL of the database that a path was meant to name, or None.

    A file with a usual suffix of SQLite is meant as one, and so is the URL of a server
    without all of its slashes or its colon.

    Example:
        >>> database_url("perf.db")
        'sqlite:///perf.db'
        >>> database_url("sqlite:/perf.db")
        'sqlite:////perf.db'
        >>> database_url("postgresql:db/perf")
        'postgresql://db/perf'
    """
    server = _SERVER.match(path)
    if server is not None:
        return f"postgresql://{path[server.end() :]}"
    if not path.lower().endswith(_OF_SQLITE):
        return None
    return f"sqlite:///{_SQLITE.sub('', path)}"


def before_project(path: str) -> str:
    """
    Return the part of a path in front of the name of a project, or "" without such a name.

    Example:
        >>> before_project(".gpuperf#model")
        '.gpuperf'
    """
    before, _, project = path.rpartition("#")
    return before if project and "/" not in project else ""


def sqlite_file(url: str) -> str | None:
    """
    Return the file of the URL of a database of SQLite, or None for another URL.

    Example:
        >>> sqlite_file("sqlite:////srv/perf.db")
        '/srv/perf.db'
    """
    scheme, _, rest = url.partition(":")
    is_file = scheme.lower() == "sqlite" and rest.startswith("///")
    return rest.removeprefix("///") if is_file else None


def masked(text: str) -> str:
    """
    Return a text, such as the URL of a store, without the passwords of its URLs.

    Example:
        >>> masked("postgresql://me:s3cr3t@db/perf?password=s3cr3t")
        'postgresql://me:***@db/perf?password=***'
    """
    for pattern in (_OF_STORE, _PASSWORD):
        text = pattern.sub(r"\1***@", text)
    text = _NO_PORT.sub(r"\1***", text)
    return _SETTING.sub(r"\1***", _TOKEN.sub(r"\1***@", text))

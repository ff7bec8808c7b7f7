"""The commands that serve a store of many machines: `baseline copy` and `baseline grants`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpuperf.baseline.history import Append
from pytest_gpuperf.baseline.store import open_store
from pytest_gpuperf.cli.output import GOOD, print_table
from pytest_gpuperf.cli.stored_tests import opened_by
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.url import masked
from pytest_gpuperf.report import display
from pytest_gpuperf.report.lines import document

if TYPE_CHECKING:
    import argparse

    from pytest_gpuperf.baseline.history import StoreChange
    from pytest_gpuperf.baseline.protocol import Store
    from pytest_gpuperf.model.record import StoredRecord

# For the owner of a database, who runs it with psql. A role is a group that users get.
_GRANTS = """\
DO $$ BEGIN CREATE ROLE gpuperf_read; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE gpuperf_write; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
GRANT USAGE ON SCHEMA {schema} TO gpuperf_read, gpuperf_write;
GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO gpuperf_read;
GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA {schema} TO gpuperf_write;
"""


def copy(arguments: argparse.Namespace) -> int:
    """Copy the sessions of a store into another one."""
    store = opened_by(arguments)
    wanted = set(arguments.machines or ())
    slugs = store.slugs()
    unknown = sorted(wanted.difference(slugs))
    if unknown:
        raise ConfigError(
            f"{arguments.store} has no sessions of {', '.join(unknown)}",
            remedy=f"name one of {', '.join(slugs)}"
            if slugs
            else "store a session first",
        )
    target = open_store(arguments.target, ".", create=True)
    by_session = _by_session(store, [s for s in slugs if s in (wanted or slugs)])
    for changes in by_session:
        target.write_all(changes)
    shown = masked(arguments.target)
    count = display.plural(len(by_session), "session")
    return print_table(
        arguments.format,
        title=shown,
        table=(),
        remarks=[f"copied {count} from {arguments.store} to {shown}"],
        content=document(
            "baseline copy",
            {"store": arguments.store, "target": shown, "sessions": len(by_session)},
        ),
    )


def _by_session(store: Store, slugs: list[str]) -> list[dict[str, list[StoreChange]]]:
    """Return the changes that add each session, in the order of arrival."""
    found: dict[tuple[int, str], dict[str, list[StoredRecord]]] = {}
    for slug in slugs:
        for records in store.load(slug).values():
            for record in records:
                at = (record.arrival, record.session.id)
                found.setdefault(at, {}).setdefault(slug, []).append(record)
    return [
        {
            slug: [Append(record=each) for each in records]
            for slug, records in part.items()
        }
        for _, part in sorted(found.items(), key=lambda entry: entry[0])
    ]


def grants(arguments: argparse.Namespace) -> int:
    """Print the statements that let roles store, or only read."""
    print(_GRANTS.format(schema=arguments.schema), end="")
    return GOOD

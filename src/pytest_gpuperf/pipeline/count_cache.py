"""Counter values of tests, found again by the files that they depend on."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.collect.ncu import key as keys
from pytest_gpuperf.errors import CollectError, CollectorTimeoutError, RecordError
from pytest_gpuperf.measure.counters import CountedTest
from pytest_gpuperf.model import codec
from pytest_gpuperf.model.gap import Gap
from pytest_gpuperf.pipeline.isolation import CounterRequest, refuse_all

if TYPE_CHECKING:
    from pytest_gpuperf.collect.loaded_files import LoadedFile
    from pytest_gpuperf.collect.ncu.store import Store
    from pytest_gpuperf.measure.site import Site

__all__ = ["CountCache"]

_LOCK = "counting"
_REFUSALS = "not-counted.jsonl"  # in the folder of the run: no other run reads it
_LONGEST_WAIT_S = 86_400.0  # for another run that counts: it has timeouts of its own
_COUNTED = "counted.json"  # of an entry of the cache
# what pytest reads of a folder on the way to a test: one that appears changes the test
_SETTINGS = ("conftest.py", "pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini")
_TEST_FILE = re.compile(r"test_\w+\.py|\w+_test\.py")


class CountCache:
    """
    What was counted before, by this run and by earlier ones.

    Args:
        site: This process.

        requests: The tests.

        store: The entries.

        identity: What all counters depend on besides files, by name.

        files: What the processes used that counted a test, by its id; None: one of them
            did not say. It is filled while tests are counted.
    """

    def __init__(
        self,
        site: Site,
        requests: Sequence[CounterRequest],
        store: Store,
        *,
        identity: Mapping[str, object],
        files: Mapping[str, frozenset[LoadedFile] | None],
    ) -> None:
        self._site = site
        self._requests = requests
        self._store = store
        self._identity = identity
        self._files = files
        folder = site.identity.expected
        self._refusals = None if folder is None else Path(folder, _REFUSALS)
        self._root = Path(site.config.root).resolve()
        self._words = functools.cache(_words)
        self._identities = self._module_identities()
        self._since_unix_s = store.now_unix_s()

    def filled(
        self, fill: Callable[[Sequence[CounterRequest]], list[CountedTest]]
    ) -> list[CountedTest]:
        """Return what is cached, and what is counted now by one process at a time."""
        counted = self._cached(self._requests)
        if len(counted) == len(self._requests):
            return list(counted.values())
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._store.lock(_LOCK, timeout_s=_LONGEST_WAIT_S))
            except CollectorTimeoutError as error:
                missing = [r for r in self._requests if r.test_id not in counted]
                return [*counted.values(), *refuse_all(missing, Gap.of(error))]
            except CollectError as error:  # others may count the same meanwhile
                self._store.remark(str(error))
            missing = [r for r in self._requests if r.test_id not in counted]
            counted |= self._cached(missing)  # whoever had the lock may have counted
            counted |= self._refused_before(missing)
            missing = [r for r in missing if r.test_id not in counted]
            self._since_unix_s = self._store.now_unix_s()
            fresh = fill(missing) if missing else []
            self._keep(missing, fresh)
            return [*counted.values(), *fresh]

    def _cached(self, requests: Sequence[CounterRequest]) -> dict[str, CountedTest]:
        """Return what is cached of some tests."""
        cached: dict[str, CountedTest] = {}
        sets = self._sets()
        states: dict[str, tuple[str, ...]] = {}
        for request in requests:
            if request.path not in states:
                states[request.path] = sets.states(self._identities[request.path])
            for state in states[request.path]:
                content = self._store.get("values", self._key(request, state))
                if content is None:
                    continue
                with contextlib.suppress(RecordError):  # of another version of ours
                    counted = codec.from_text(content.files[_COUNTED], CountedTest)
                    if self._will_do(counted):
                        cached[request.test_id] = counted
        return cached

    def _will_do(self, counted: CountedTest) -> bool:
        """Return whether it need not be counted again: what a baseline keeps, must be."""
        site = self._site
        is_own = counted.session_id == site.identity.session.id
        return site.config.update is None or is_own

    def _refused_before(
        self, requests: Sequence[CounterRequest]
    ) -> dict[str, CountedTest]:
        """Return what another process of this run has counted in vain."""
        if self._refusals is None or not self._refusals.exists():
            return {}
        lines = self._refusals.read_bytes().splitlines()
        every = (codec.from_text(line, CountedTest) for line in lines)
        refused = {counted.test_id: counted for counted in every}
        ids = (request.test_id for request in requests)
        return {test_id: refused[test_id] for test_id in ids if test_id in refused}

    def _keep(
        self, requests: Sequence[CounterRequest], fresh: Sequence[CountedTest]
    ) -> None:
        """Keep what would be the same again; tell this run's processes of all else."""
        by_id = {request.test_id: request for request in requests}
        sets = self._sets()

        @functools.cache
        def state_of(path: str, files: frozenset[LoadedFile]) -> str | None:
            identity, used = self._identities[path], self._files_of(path, files)
            return sets.add(identity, used, since_unix_s=self._since_unix_s)

        for counted in fresh:
            text = codec.to_text(counted).encode()
            is_kept = counted.complete and self._is_kept(
                by_id[counted.test_id], text, state_of
            )
            if not is_kept and self._refusals is not None:
                with self._refusals.open("ab") as file:
                    file.write(text + b"\n")

    def _is_kept(
        self,
        test: CounterRequest,
        text: bytes,
        state_of: Callable[[str, frozenset[LoadedFile]], str | None],
    ) -> bool:
        """Keep what was counted of a test; return whether that was possible."""
        files = self._files.get(test.test_id)
        if files is None:
            self._store.remark(
                "a process ended early, so the files that it loaded are not known: its "
                "tests are counted again in the next run"
            )
            return False
        try:
            state = state_of(test.path, files)
            if state is not None:
                self._store.put("values", self._key(test, state), {_COUNTED: text})
        except CollectError as error:
            self._store.remark(str(error))
            return False
        return state is not None

    def _sets(self) -> keys.FileSets:
        """Return a look at the files as they are now."""
        return keys.FileSets(self._store, self._root, os.environ)

    def _module_identities(self) -> dict[str, str]:
        """Return what the counters of each module depend on besides files, as a key."""
        paths = {Path(test.path) for test in self._requests}
        return {
            str(path): keys.key_of({**self._identity, "settings": self._settings(path)})
            for path in paths
        }

    def _settings(self, path: Path) -> tuple[str, ...]:
        """Return a test module and the settings on the way to it, by name."""
        path = path.resolve()
        folders = [f for f in path.parents if f.is_relative_to(self._root)]
        paths = (folder / name for folder in folders for name in _SETTINGS)
        names = (os.path.relpath(p, self._root) for p in paths if p.exists())
        return (os.path.relpath(path, self._root), *names)

    def _files_of(self, path: str, files: Iterable[LoadedFile]) -> list[LoadedFile]:
        """
        Return the files of a process without the test modules of others.

        pytest imports all of them. They stay where a file of the project names one.
        """
        test_path = os.path.realpath(path)
        paths = {file: Path(file.path) for file in files}
        other_tests = {
            file
            for file, place in paths.items()
            if _TEST_FILE.fullmatch(place.name) and file.path != test_path
        }
        names = {os.fsencode(paths[file].stem) for file in other_tests}
        remaining = [file for file in paths if file not in other_tests]
        texts = (paths[f] for f in remaining if paths[f].is_relative_to(self._root))
        is_named = any(not names.isdisjoint(self._words(text)) for text in texts)
        return list(paths) if is_named else remaining

    def _key(self, test: CounterRequest, state: str) -> str:
        """Return the key of a test's counters in a state of its files."""
        fields = {
            "identity": self._identities[test.path],
            "files": state,
            "test": test.test_id,
            "metrics": (test.metrics, test.counters),
            "cache": test.cache_control,
        }
        return keys.key_of(fields)


def _words(path: Path) -> frozenset[bytes]:
    """Return the words in a Python file; one that is gone has none."""
    text = path.read_bytes() if path.suffix == ".py" and path.exists() else b""
    return frozenset(re.findall(rb"\w+", text))

"""A worktree of a revision, created without network and hooks, and always removed.

    repository = Repository.at(folder, runner)
    with worktree(repository, repository.commit_of("main")) as tree:
        ...  # tree.path has the files of that commit

The working tree and its index are never written to. Leftovers of a killed run are
removed by the next run.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_gpuperf.collect.runner import Finished, Runner
from pytest_gpuperf.collect.scratch import ScratchFolder
from pytest_gpuperf.collect.signals import ending
from pytest_gpuperf.errors import CollectorUnavailableError, RevisionError
from pytest_gpuperf.model.frozen import Frozen

# Enough for a checkout of a large repository on a slow disk.
_GIT_S = 600.0
_NO_HOOKS = ("-c", "core.hooksPath=/dev/null")
_NO_LFS = (
    *("-c", "filter.lfs.process="),
    *("-c", "filter.lfs.smudge="),
    *("-c", "filter.lfs.required=false"),
)
_SETTINGS = {
    # The messages of git are shown unchanged.
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    # The index is not written to.
    "GIT_OPTIONAL_LOCKS": "0",
}
# Parts of the names of our folders, and of the worktree in each folder.
_KIND, _TREE = "against", "old"
# For a full disk, git prints only this message.
_UNWRITTEN = "error: unable to write file"
# git's message about objects that it could not fetch.
_PROMISED = b"promisor remote"
# The mode of a submodule's entry in an index.
_SUBMODULE = "160000"
# Code built from the working tree.
_COMPILED = (".so", ".pyd", ".dylib", ".o", ".a")
# Number of commits to fetch into a shallow clone if the revision does not imply one.
_DEEPEN = 100
# A branch name without a step to an ancestor.
_BRANCH = re.compile(r"[^~^:@]+")
# Ranges, as described in `git help revisions`.
_SEVERAL = re.compile(r"\^|.*(?:\.\.|\^@$|\^!$|\^-\d*$)")


class Worktree(Frozen, frozen=True, kw_only=True):
    """
    The files of a revision in a folder of their own.

    Attributes:
        path: The root of the files.

        scratch: The temporary folder that holds `path` and other files of the run, and
            is removed at the end.

        carried: The files that were copied from the working tree, relative to the root.

        remarks: Differences from a clone, one sentence each.
    """

    path: str
    scratch: str
    carried: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class Changes(Frozen, frozen=True, kw_only=True):
    """
    Differences between a commit and the working tree. All paths are relative to the root.

    Attributes:
        root: The root of the working tree, without links.

        differing: The files that differ from the commit, including files that git does
            not check for changes (assume-unchanged, sparse checkout). The names of
            folders, which are submodules and other repositories, end with a slash.

        listed: The files that git tracks or would add, including files of submodules.

        before: The files and submodules of the commit.
    """

    root: str
    differing: frozenset[str]
    listed: frozenset[str]
    before: frozenset[str]


class Repository:
    """
    A git repository with a working tree.

    Args:
        root: The root of the working tree.

        runner: Starts git.

        revision: The revision that errors name.
    """

    def __init__(self, root: str, runner: Runner, *, revision: str = "") -> None:
        self.root = root
        self._runner = runner
        self._revision = revision

    @classmethod
    def at(cls, folder: str, runner: Runner, *, revision: str = "") -> Repository:
        """
        Find the repository that contains a folder.

        Raises:
            RevisionError: There is no repository, it has no working tree, or git is
                missing.
        """
        finder = cls(folder, runner, revision=revision)
        inside = finder.run("rev-parse", "--is-inside-work-tree")
        if inside.exit_code:
            # git distrusts another user's clone, as in a container.
            trust = r"git config \S+ --add safe\.directory .+"
            command = re.search(trust, inside.log_tail)
            remedy = "start it in a clone of the project"
            if command:
                remedy = f"if you trust it, run {command[0].strip()}"
            raise finder.error(
                f"{folder} is not in a git repository that can be read "
                f"({_last_line(inside)})",
                remedy,
            )
        if _text(inside) != "true":
            raise finder.error(
                f"{folder} is in a repository without a working tree",
                "start it in a clone that is not bare",
            )
        root = os.path.realpath(finder.text("rev-parse", "--show-toplevel"))
        return cls(root, runner, revision=revision)

    def run(self, *args: str, stdin: bytes = b"") -> Finished:
        """
        Run git in the root, without the variables that git sets for hooks.

        Raises:
            RevisionError: git cannot be started.
        """
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        argv = ("git", *_NO_HOOKS, *args)
        try:
            return self._runner.run(
                argv,
                timeout_s=_GIT_S,
                cwd=self.root,
                env=environment | _SETTINGS,
                stdin=stdin,
            )
        except CollectorUnavailableError as error:
            raise self.error(error.message, error.remedy) from error

    def text(self, *args: str) -> str:
        """
        Return the output of a git command.

        Raises:
            RevisionError: The command fails.
        """
        finished = self.run(*args)
        if finished.exit_code:
            message = f"git {' '.join(args)} failed in {self.root}: "
            raise self.error(
                message + _last_line(finished), f"run it in {self.root} and mend it"
            )
        return _text(finished)

    def paths(self, *args: str) -> tuple[str, ...]:
        """Return the paths that a git command prints with -z."""
        name, *rest = args
        return tuple(path for path in self.text(name, "-z", *rest).split("\0") if path)

    def error(self, message: str, remedy: str) -> RevisionError:
        """Create an error about the revision."""
        return RevisionError(message, remedy=remedy, revision=self._revision)

    def within(self, root: str) -> Repository:
        """Return the repository of a worktree or a submodule."""
        return Repository(root, self._runner, revision=self._revision)

    def tracked(self) -> frozenset[str]:
        """Return the files that git tracks in the tree, including files of submodules."""
        return frozenset(self.paths("ls-files", "--recurse-submodules"))

    def filters_lfs(self) -> bool:
        """Return True if filters for git LFS are configured, as by `git lfs install`."""
        return self.run("config", "--get-regexp", r"^filter\.lfs\.").exit_code == 0

    def listed(self) -> tuple[str, ...]:
        """Return the files that git tracks or would add, including files of submodules."""
        listed = self.paths("ls-files", "--cached", "--others", "--exclude-standard")
        inner = dict(self.submodules())
        files = [path for path in listed if path not in inner]
        for folder in inner:
            if Path(self.root, folder, ".git").exists():
                module = self.within(str(Path(self.root, folder)))
                files += [f"{folder}/{path}" for path in module.listed()]
        return tuple(files)

    def differing(self, commit: str) -> frozenset[str]:
        """
        Return the files of the working tree that differ from a commit.

        The name of a submodule that differs ends with a slash.
        """
        diff = ("diff", "--no-ext-diff", "--no-renames", "--name-only")
        new = ("ls-files", "--others", "--exclude-standard")
        paths = (*self.paths(*diff, commit), *self.paths(*new))
        folders = {path for path, _ in self.submodules()}
        return frozenset(f"{p}/" if p in folders else p for p in paths)

    def changes(self, commit: str) -> Changes:
        """Compare the files of the working tree with a commit."""
        differing = set(self.differing(commit))
        # Content of submodules that git's settings exclude from a diff.
        diff = ("diff", "--no-ext-diff", "--name-only", "--ignore-submodules=none")
        folders = {f"{path}/" for path, _ in self.submodules()}
        differing |= folders.intersection(f"{p}/" for p in self.paths(*diff, commit))
        # "H" stands for a file whose changes git detects, which is neither
        # assume-unchanged nor outside a sparse checkout.
        states = [line.split(" ", 1) for line in self.paths("ls-files", "-v")]
        differing.update(path for state, path in states if state != "H")
        known = ("ls-tree", "-r", "--name-only", commit)
        return Changes(
            root=self.root,
            differing=frozenset(differing),
            listed=frozenset(self.listed()),
            before=frozenset(self.paths(*known)),
        )

    def ignored(self, paths: Sequence[str]) -> frozenset[str]:
        """Return the paths that git ignores."""
        if not paths:
            return frozenset()
        stdin = os.fsencode("\0".join(paths))
        finished = self.run("check-ignore", "-z", "--stdin", stdin=stdin)
        return frozenset(filter(None, _text(finished).split("\0")))

    def ignored_below(self, places: Sequence[str]) -> tuple[str, ...]:
        """Return the files that git ignores at or below some places of the tree."""
        if not places:
            return ()
        others = ("ls-files", "--others", "--ignored", "--exclude-standard", "--")
        return self.paths(*others, *(f":(literal){place}" for place in places))

    def commit_of(self, revision: str) -> str:
        """
        Return the commit that a revision names.

        Raises:
            RevisionError: The revision names no commit, or several.
        """
        if not revision or revision.startswith("-"):
            message = f"{revision!r} is not a revision"
            raise self.error(message, "give a branch, a tag or a commit")
        verify = ("rev-parse", "--verify", "--end-of-options")
        named = self.run("-c", "core.warnAmbiguousRefs=true", *verify, revision)
        # git resolves an ambiguous name to one of its meanings, and only warns.
        if b"is ambiguous" in named.stderr:
            # The refs that git tries for a name, see `git help revisions`.
            refs = [f"refs/{kind}/{revision}" for kind in ("tags", "heads", "remotes")]
            every = self.run("for-each-ref", "--format=%(refname)", *refs)
            names = _text(every).split()
            if not names:
                objects = self.run("rev-parse", f"--disambiguate={revision}")
                names = _text(objects).split()
            message = f"{revision} is ambiguous in {self.root}: {', '.join(names)}"
            raise self.error(message, "write out the one that is meant")
        # git also accepts an exclusion here.
        if named.exit_code or revision.startswith("^"):
            raise self._unknown(revision)
        # A separate call, because after ":/text" the suffix would belong to the text.
        commit = self.run(*verify, f"{_text(named)}^{{commit}}")
        if commit.exit_code:
            raise self._unknown(revision)
        return _text(commit)

    def _unknown(self, revision: str) -> RevisionError:
        if _SEVERAL.match(revision):
            message = f"{revision} is a range of commits or leaves some out of one"
            return self.error(message, "give one branch, tag or commit")
        kind = _text(self.run("cat-file", "-t", revision))
        if kind:
            message = f"{revision} is a {kind} of {self.root}, not a commit"
            return self.error(message, "give a branch, a tag or a commit")
        message = f"{revision} is not a commit of {self.root}"
        remote, _, branch = revision.partition("/")
        is_remote = _BRANCH.fullmatch(branch) and remote in self._remotes()
        any_commit = self.run("rev-list", "--all", "--max-count=1")
        if not is_remote and not _text(any_commit):
            return self.error(f"{message}, which has none yet", "commit first")
        is_shallow = _text(self.run("rev-parse", "--is-shallow-repository")) == "true"
        if is_shallow:
            message += ", which is a shallow clone"
        tracked = ("--format=%(refname:short)", f"refs/remotes/*/{revision}")
        names = _text(self.run("for-each-ref", *tracked)).split()
        if names:
            return self.error(message, f"name the remote's branch: {names[0]}")
        if is_remote:
            # A clone of one branch fetches no other branch, however deep.
            command = f"git fetch {remote} +{branch}:refs/remotes/{revision}"
            return self.error(message, f"fetch it: {command}")
        remedy = "give a branch, a tag or a commit"
        if is_shallow:
            steps = re.search(r"~(\d+)$", revision)
            count = int(steps[1]) if steps else _DEEPEN
            remedy = f"fetch more of its history: git fetch --deepen={count}"
        elif _BRANCH.fullmatch(revision) and (remotes := self._remotes()):
            remote = "origin" if "origin" in remotes else remotes[0]
            remedy = f"fetch it: git fetch --tags {remote}"
        return self.error(message, remedy)

    def _remotes(self) -> list[str]:
        return _text(self.run("remote")).split()

    def submodules(self) -> Iterator[tuple[str, str]]:
        """Yield path and commit of every submodule."""
        for line in self.paths("ls-files", "--stage"):
            fields, _, path = line.partition("\t")
            mode, commit, _ = fields.split()
            if mode == _SUBMODULE:
                yield path, commit


@contextlib.contextmanager
def worktree(
    repository: Repository, commit: str, *, carry: Sequence[str] = ()
) -> Iterator[Worktree]:
    """
    Check out a commit in a new folder, and remove the folder at the end.

    Args:
        repository: The repository of the commit.

        commit: The commit, as `commit_of` returns it.

        carry: Files to copy from the working tree, as patterns relative to its root.
            Meant for generated files, which git does not track.

    Raises:
        RevisionError: The commit cannot be checked out. Nothing is left behind.
    """
    parent = os.path.realpath(tempfile.gettempdir())
    remedy = "set TMPDIR to another folder"
    # PYTHONPATH is a list with this separator between its entries.
    if os.pathsep in parent:
        message = f"the temporary folder {parent} has {os.pathsep!r} in its name"
        raise repository.error(message, remedy)
    if Path(parent).is_relative_to(repository.root):
        message = f"the temporary folder {parent} is part of the working tree"
        raise repository.error(message, remedy)
    try:
        # Removes the folders of killed runs first.
        folder = ScratchFolder(_KIND)
    except OSError as error:
        raise _no_room(repository, parent, error) from error
    scratch = Path(os.path.realpath(folder.path))
    try:
        # Killed runs, too, have left worktrees that git remembers.
        for path in _worktrees(repository):
            is_ours = path.name == _TREE and f"-{_KIND}-" in path.parent.name
            if is_ours and not path.parent.exists():
                _forget(repository, path.parent)
        yield _checked_out(repository, scratch, commit, carry)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _no_room(repository, str(scratch), error) from error
    finally:
        _remove(repository, scratch / _TREE)
        folder.remove()
        _forget(repository, scratch)


def _no_room(repository: Repository, folder: str, error: OSError) -> RevisionError:
    message = f"{folder} cannot take the revision's files ({error.strerror})"
    return repository.error(message, "make room there, or set TMPDIR elsewhere")


def _checked_out(
    repository: Repository, scratch: Path, commit: str, carry: Sequence[str]
) -> Worktree:
    tree = repository.within(str(scratch / _TREE))
    add = ("worktree", "add", "--detach", "--lock")
    finished = repository.run(*add, tree.root, commit)
    remarks = []
    if finished.exit_code and (
        b"smudge" in finished.stderr or repository.filters_lfs()
    ):
        finished = repository.run(
            *_NO_LFS, *add, "--force", "--force", tree.root, commit
        )
        why, command = "their contents are not in this clone", "git lfs fetch --all"
        if shutil.which("git-lfs") is None:
            why = "git-lfs is not installed"
            command = "install git-lfs, then git lfs fetch --all"
        remarks.append(
            f"files of git LFS are pointers on the old side: {why} (to have them: "
            f"{command})"
        )
    if finished.exit_code:
        message = f"git cannot check out {commit[:12]} in {tree.root}: "
        remedy = "see what git says"
        full = (os.strerror(errno.ENOSPC).encode(), _UNWRITTEN.encode())
        if any(text in finished.stderr for text in full):
            remedy = "make room there, or set TMPDIR to another folder"
        # A partial clone whose remote does not answer.
        elif _PROMISED in finished.stderr:
            remedy = (
                "this partial clone lacks files of that commit: while its remote"
                " answers, fetch them with git fetch --refetch --no-filter"
            )
        raise repository.error(message + _last_line(finished), remedy)
    remarks += _add_submodules(repository, tree)
    return Worktree(
        path=tree.root,
        scratch=str(scratch),
        carried=_carry(repository, tree, carry),
        remarks=tuple(remarks),
    )


def _add_submodules(outer: Repository, tree: Repository) -> list[str]:
    """Check out the submodules of the working tree. Returns remarks on empty submodules."""
    remarks = []
    for path, commit in tree.submodules():
        origin = outer.within(str(Path(outer.root, path)))
        if not Path(origin.root, ".git").exists():
            remarks.append(
                f"the submodule {path} is empty: the working tree has it not"
            )
            continue
        target = tree.within(str(Path(tree.root, path)))
        added = origin.run("worktree", "add", "--detach", target.root, commit)
        if added.exit_code:
            message = f"the submodule {path} cannot be checked out at {commit[:12]}: "
            remedy = f"fetch that commit: git -C {path} fetch"
            raise outer.error(message + _last_line(added), remedy)
        remarks += _add_submodules(origin, target)
    return remarks


def _carry(
    repository: Repository, tree: Repository, carry: Sequence[str]
) -> tuple[str, ...]:
    """Copy generated files, and return the paths. Compiled or tracked files are refused."""
    root, carried = Path(repository.root), []
    tracked = repository.tracked() if carry else frozenset()
    for pattern in carry:
        names = glob.glob(pattern, root_dir=root, recursive=True)  # noqa: PTH207 - that of Path raises for an absolute pattern
        sources = [root / name for name in names if (root / name).is_file()]
        if not sources or not all(
            path.resolve().is_relative_to(root) for path in sources
        ):
            message = f"{pattern} cannot be carried to the other side: "
            reason = "the working tree has no such file"
            raise repository.error(message + reason, "correct the path")
        for source in sources:
            name = str(source.relative_to(root))
            message = f"{name} cannot be carried to the other side: "
            if name in tracked or source.suffix in _COMPILED:
                remedy = "carry only generated files, and build others on both sides"
                raise repository.error(f"{message}it is code of this one", remedy)
            target = Path(tree.root, name)
            way = [target, *target.parents[: len(Path(name).parts) - 1]]
            link = next((place for place in reversed(way) if place.is_symlink()), None)
            # A link may lead out of the tree.
            if link is not None:
                message += f"{link.relative_to(tree.root)} is a link there"
                raise repository.error(message, "carry to a path without links")
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                # copy2 would copy into a folder.
                shutil.copyfile(source, target)
                shutil.copystat(source, target)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                message += f"the path is taken there ({error.strerror})"
                raise repository.error(
                    message, "carry to a path that is free"
                ) from error
            carried.append(name)
    return tuple(carried)


def _worktrees(repository: Repository) -> list[Path]:
    lines = _text(repository.run("worktree", "list", "--porcelain")).splitlines()
    word = "worktree "
    return [Path(line[len(word) :]) for line in lines if line.startswith(word)]


def _remove(repository: Repository, tree: Path) -> None:
    repository.run("worktree", "unlock", str(tree))
    # Twice, because git otherwise keeps a worktree that is locked or has submodules.
    repository.run("worktree", "remove", "--force", "--force", str(tree))


def _forget(repository: Repository, scratch: Path) -> None:
    """
    Make git and the submodules forget the worktrees in a removed scratch folder.

    Other worktrees are kept. `git worktree prune` would also forget those of a drive
    that is not mounted now, with the changes staged there.
    """
    for tree in _worktrees(repository):
        if tree.is_relative_to(scratch):
            _remove(repository, tree)
    for path, _ in repository.submodules():
        inner = repository.within(str(Path(repository.root, path)))
        if Path(inner.root, ".git").exists():
            _forget(inner, scratch)


def _text(finished: Finished) -> str:
    return os.fsdecode(finished.stdout).rstrip("\n")


def _last_line(finished: Finished) -> str:
    lines = finished.log_tail.splitlines()
    marked = [line for line in lines if line.startswith(("fatal:", "error:"))]
    marked += [line for line in marked if line.startswith(_UNWRITTEN)][:1]
    # git was killed before it could report an error.
    if finished.exit_code < 0:
        return f"it was ended by {ending(finished.exit_code)}"
    return (marked or lines or [ending(finished.exit_code)])[-1]

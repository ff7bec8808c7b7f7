"""A worktree of a revision: only of a commit, never with the network, never left behind."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fakes.repositories import Repo
from fakes.runner import Call, FakeRunner, finished
from pytest_gpuperf.collect.runner import Finished, ProcessRunner
from pytest_gpuperf.collect.worktree import Repository, worktree
from pytest_gpuperf.errors import CollectorUnavailableError, RevisionError

RUNNER = ProcessRunner()


@pytest.fixture(autouse=True)
def temporary(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the temporary folder one that can be looked at."""
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    return scratch


@pytest.fixture
def two(repo: Repo) -> Repo:
    """Return a repository with two commits of `a.py`."""
    repo.two_commits("a.py", "N = @N@\n")
    return repo


def at(repo: Repo, folder: str = "") -> Repository:
    return Repository.at(str(repo.root / folder), RUNNER, revision="REV")


def refusal(repo: Repo, revision: str) -> str:
    with pytest.raises(RevisionError) as caught:
        at(repo).commit_of(revision)
    return str(caught.value)


def test_a_revision_is_checked_out_and_removed(two: Repo, temporary: Path) -> None:
    """Its files lie in a fresh folder; afterwards nothing is left, and nothing changed."""
    two.write("a.py", "edited\n")
    two.write("new.py", "")
    before = two.git("status", "--porcelain")

    with worktree(at(two), at(two).commit_of("HEAD~1")) as tree:
        assert Path(tree.path, "a.py").read_text() == "N = 1\n"
        assert not Path(tree.path, "new.py").exists()
        assert Path(tree.path).is_relative_to(temporary)

    assert not list(temporary.iterdir())
    assert two.git("worktree", "list").count("\n") == 0
    assert two.git("status", "--porcelain") == before


def test_it_is_removed_whatever_is_raised(two: Repo, temporary: Path) -> None:
    """Ctrl-C, too."""
    with pytest.raises(KeyboardInterrupt), worktree(at(two), at(two).commit_of("HEAD")):
        raise KeyboardInterrupt

    assert not list(temporary.iterdir())
    assert two.git("worktree", "list").count("\n") == 0


@pytest.mark.parametrize("revision", ["HEAD", "main", "HEAD~1", "@", "main^{commit}"])
def test_a_commit_is_found_by_any_of_its_names(two: Repo, revision: str) -> None:
    """As git finds it."""
    expected = two.git("rev-parse", f"{revision}^{{commit}}")

    assert at(two).commit_of(revision) == expected


def test_a_commit_may_be_named_by_its_message(two: Repo) -> None:
    """What follows ":/" is all of it the text that is looked for."""
    two.git("commit", "--allow-empty", "-m", "make it fast")

    assert at(two).commit_of(":/it fast") == two.git("rev-parse", "HEAD")


def test_a_tag_is_its_commit(two: Repo) -> None:
    """An annotated tag is an object of its own."""
    two.git("tag", "-a", "-m", "x", "v1", "HEAD~1")

    assert at(two).commit_of("v1") == two.git("rev-parse", "HEAD~1")


def test_what_is_not_a_revision_is_refused(two: Repo) -> None:
    """The message names it, the repository and what to do."""
    message = f"nowhere is not a commit of {two.root}; "

    assert refusal(two, "nowhere") == f"{message}give a branch, a tag or a commit"
    assert "'' is not a revision" in refusal(two, "")


@pytest.mark.parametrize(
    "revision",
    [
        *("^HEAD", "^main^{commit}", "HEAD~1..main", "a...b", "..HEAD", "HEAD.."),
        *("HEAD^@", "HEAD^!", "HEAD^-", "HEAD^-1"),
    ],
)
def test_a_range_or_an_exclusion_is_not_one_commit(two: Repo, revision: str) -> None:
    """Git reads each of them; no fetch would make it one commit."""
    two.git("remote", "add", "origin", "https://localhost/x")

    assert refusal(two, revision) == (
        f"{revision} is a range of commits or leaves some out of one; "
        "give one branch, tag or commit"
    )


def test_a_commit_may_be_named_by_a_subject_with_dots(two: Repo) -> None:
    """It is a range only where git finds no commit."""
    two.git("commit", "--allow-empty", "-m", "from a..b on")

    assert at(two).commit_of("HEAD^{/a..b}") == two.git("rev-parse", "HEAD")


@pytest.mark.parametrize("revision", ["--upload-pack=x", "-h", "-"])
def test_an_option_is_not_a_revision(two: Repo, revision: str) -> None:
    """Git must not take it for one of its own."""
    assert f"'{revision}' is not a revision" in refusal(two, revision)


def test_a_tree_or_a_file_is_not_a_commit(two: Repo) -> None:
    """It is called what it is."""
    tree = two.git("rev-parse", "HEAD^{tree}")
    file = two.git("rev-parse", "HEAD:a.py")

    assert f"{tree} is a tree of {two.root}, not a commit" in refusal(two, tree)
    assert f"{file} is a blob of {two.root}, not a commit" in refusal(two, file)


def test_an_ambiguous_name_is_refused(two: Repo) -> None:
    """Git would take the tag and warn; both are named."""
    two.git("tag", "x", "HEAD~1")
    two.git("branch", "x")

    text = refusal(two, "x")

    assert "x is ambiguous" in text
    assert "refs/heads/x" in text
    assert "refs/tags/x" in text


def test_a_branch_of_the_remote_is_named(two: Repo) -> None:
    """A hosted runner has `origin/dev` and no `dev`."""
    two.git("update-ref", "refs/remotes/origin/dev", "HEAD~1")

    assert "name the remote's branch: origin/dev" in refusal(two, "dev")


@pytest.mark.parametrize(("revision", "count"), [("HEAD~7", 7), ("v1", 100)])
def test_a_shallow_clone_is_told_how_to_deepen(
    two: Repo, revision: str, count: int
) -> None:
    """With as many commits as are missing, where the revision says it."""
    clone = two.outer / "clone"
    two.git("clone", "-q", "--depth=1", f"file://{two.root}", str(clone))
    two.root = clone

    assert f"git fetch --deepen={count}" in refusal(two, revision)


@pytest.mark.parametrize("depth", [(), ("--depth=1",)])
def test_a_clone_of_one_branch_is_told_how_to_fetch_another(
    two: Repo, depth: tuple[str, ...]
) -> None:
    """Deepening would not bring it; the command that is named does."""
    two.git("branch", "other/dev", "HEAD~1")
    clone = two.outer / "clone"
    url = f"file://{two.root}"
    two.git("clone", "-q", "--single-branch", *depth, url, str(clone))
    commit, two.root = two.git("rev-parse", "other/dev"), clone

    _, found, command = refusal(two, "origin/other/dev").partition("fetch it: git ")
    assert found
    two.git(*command.split())
    assert Repository.at(str(clone), RUNNER).commit_of("origin/other/dev") == commit


@pytest.mark.parametrize("ref", ["tags/v1", "heads/dev"])
def test_a_tag_or_a_branch_that_is_new_is_told_how_to_fetch_it(
    two: Repo, ref: str
) -> None:
    """With the command that is printed; a branch is the remote's then."""
    clone, revision = two.outer / "clone", ref.partition("/")[2]
    two.git("clone", "-q", f"file://{two.root}", str(clone))
    two.git("update-ref", f"refs/{ref}", "HEAD~1")
    commit, two.root = two.git("rev-parse", "HEAD~1"), clone
    two.git("remote", "add", "a", "file:///nowhere")

    _, found, command = refusal(two, revision).partition("fetch it: git ")
    assert found
    two.git(*command.split())
    here = revision if ref.startswith("tags/") else f"origin/{revision}"
    assert at(two).commit_of(here) == commit


@pytest.mark.parametrize("revision", ["HEAD", "HEAD~1", "main"])
def test_a_repository_without_a_commit_is_told_to_commit(
    repo: Repo, revision: str
) -> None:
    """There is nothing to fetch; a remote that is named has something all the same."""
    repo.git("remote", "add", "origin", "file:///nowhere")
    message = f"{revision} is not a commit of {repo.root}, which has none yet; "

    assert refusal(repo, revision) == f"{message}commit first"
    assert "git fetch origin +main:" in refusal(repo, "origin/main")


def test_a_branch_of_the_remote_is_named_in_a_shallow_clone(two: Repo) -> None:
    """It is there: more of the history would not make a local one."""
    clone = two.outer / "clone"
    two.git("clone", "-q", "--depth=1", f"file://{two.root}", str(clone))
    two.root = clone
    two.git("update-ref", "refs/remotes/origin/dev", "HEAD")

    assert "name the remote's branch: origin/dev" in refusal(two, "dev")


def test_a_folder_without_a_repository_is_refused(tmp_path: Path) -> None:
    """The folder is named."""
    with pytest.raises(RevisionError, match="is not in a git repository") as caught:
        Repository.at(str(tmp_path), RUNNER, revision="HEAD")

    assert str(tmp_path) in str(caught.value)
    assert caught.value.revision == "HEAD"


def test_a_clone_of_another_user_is_told_how_to_trust_it() -> None:
    """A job in a container has one: it is in the clone already."""
    stderr = (
        b"fatal: detected dubious ownership in repository at '/builds/a b'\n"
        b"To add an exception for this directory, call:\n\n"
        b"\tgit config --global --add safe.directory '/builds/a b'\n"
    )
    runner = FakeRunner([finished(128, stderr=stderr)])
    with pytest.raises(RevisionError) as caught:
        Repository.at("/builds/a b", runner)

    assert "dubious ownership" in caught.value.message
    assert caught.value.remedy.endswith(
        "run git config --global --add safe.directory '/builds/a b'"
    )


def test_a_bare_repository_is_refused(two: Repo) -> None:
    """There is no working tree to compare with."""
    bare = two.outer / "bare"
    two.git("clone", "-q", "--bare", str(two.root), str(bare))

    with pytest.raises(RevisionError, match="a repository without a working tree"):
        Repository.at(str(bare), RUNNER)


def test_a_machine_without_git_is_told() -> None:
    """The runner's reason is the revision's."""
    missing = CollectorUnavailableError("git cannot be started", remedy="install git")

    with pytest.raises(RevisionError, match="git cannot be started; install git"):
        Repository.at("/project", FakeRunner([missing]))


def test_variables_of_a_git_hook_are_dropped(
    two: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that starts the tests has set GIT_DIR to another repository."""
    monkeypatch.setenv("GIT_DIR", "/nowhere")

    assert at(two).root == os.path.realpath(two.root)


def test_a_subfolder_and_a_detached_head_are_as_good(two: Repo) -> None:
    """The root is found; HEAD need not be a branch."""
    two.git("checkout", "-q", "--detach", "HEAD~1")
    two.write("b/c.py", "")

    assert at(two, "b").root == os.path.realpath(two.root)
    assert at(two).commit_of("HEAD") == two.git("rev-parse", "HEAD")


def test_a_worktree_inside_a_worktree(two: Repo, temporary: Path) -> None:
    """A linked worktree inside the main one is a working tree like any other."""
    linked = two.root / "linked"
    two.git("worktree", "add", "-q", "--detach", str(linked), "HEAD")
    repository = Repository.at(str(linked), RUNNER)

    with worktree(repository, repository.commit_of("HEAD~1")) as tree:
        assert repository.root == os.path.realpath(linked)
        assert Path(tree.path, "a.py").read_text() == "N = 1\n"

    assert two.git("worktree", "list").count("\n") == 1
    assert not list(temporary.iterdir())


def test_two_runs_at_once(two: Repo, temporary: Path) -> None:
    """Neither removes the other's folder: its lock is held."""
    repository = at(two)
    with worktree(repository, repository.commit_of("HEAD")) as first:
        with worktree(repository, repository.commit_of("HEAD~1")) as second:
            assert Path(first.path, "a.py").read_text() == "N = 2\n"
            assert Path(second.path, "a.py").read_text() == "N = 1\n"
        assert Path(first.path, "a.py").exists()

    assert not list(temporary.iterdir())


KILLED = """
import os, signal, sys
from pytest_gpuperf.collect.runner import ProcessRunner
from pytest_gpuperf.collect.worktree import Repository, worktree
repository = Repository.at(sys.argv[1], ProcessRunner())
with worktree(repository, repository.commit_of("HEAD")):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_a_run(repo: Repo) -> None:
    argv = [sys.executable, "-c", KILLED, str(repo.root)]
    done = subprocess.run(argv, check=False)
    assert done.returncode == -signal.SIGKILL


def test_what_a_killed_run_left_is_removed_by_the_next(
    two: Repo, temporary: Path
) -> None:
    """The folder and git's entry, although the entry is locked."""
    kill_a_run(two)
    (left,) = temporary.iterdir()
    assert two.git("worktree", "list").count("\n") == 1

    with worktree(at(two), at(two).commit_of("HEAD")):
        assert not left.exists()
        assert two.git("worktree", "list").count("\n") == 1

    assert not list(temporary.iterdir())


def test_an_entry_whose_folder_was_deleted_is_removed(
    two: Repo, temporary: Path
) -> None:
    """Git keeps a locked one for ever."""
    kill_a_run(two)
    shutil.rmtree(temporary)
    temporary.mkdir()

    with worktree(at(two), at(two).commit_of("HEAD")):
        assert two.git("worktree", "list").count("\n") == 1


def test_what_is_not_ours_stays(two: Repo, temporary: Path) -> None:
    """A folder without our lock, and an entry of git that somebody else has made."""
    (temporary / "gpuperf-against-mine").mkdir()
    (temporary / "gpuperf-against-mine" / "notes").write_text("x")
    (temporary / "unrelated").mkdir()
    before = sorted(temporary.iterdir())
    theirs = str(two.outer / "old")
    two.git("worktree", "add", "-q", "--detach", "--lock", theirs, "HEAD")
    shutil.rmtree(theirs)

    with worktree(at(two), at(two).commit_of("HEAD")):
        pass

    assert sorted(temporary.iterdir()) == before
    assert theirs in two.git("worktree", "list")


def test_a_worktree_on_a_drive_that_is_not_there_now_stays(
    two: Repo, temporary: Path
) -> None:
    """With what was staged in it: `git worktree prune` would forget both."""
    theirs = two.outer / "drive"
    two.git("worktree", "add", "-q", "--detach", str(theirs), "HEAD")
    (theirs / "staged.txt").write_text("x", "utf-8")
    two.git("-C", str(theirs), "add", "staged.txt")
    theirs.rename(two.outer / "elsewhere")
    with worktree(at(two), at(two).commit_of("HEAD")):
        pass
    (two.outer / "elsewhere").rename(theirs)

    assert two.git("-C", str(theirs), "status", "--short") == "A  staged.txt"


def test_a_run_of_another_repository_is_cleared_by_both(
    two: Repo, temporary: Path
) -> None:
    """Whoever comes next removes its folder; its own next run, the entry of git."""
    other = Repo.make(two.outer, "other")
    other.two_commits("a.py", "N = @N@\n")
    kill_a_run(other)

    with worktree(at(two), at(two).commit_of("HEAD")):
        pass
    assert not list(temporary.iterdir())

    with worktree(at(other), at(other).commit_of("HEAD")):
        assert other.git("worktree", "list").count("\n") == 1


class Full(FakeRunner):
    """A runner whose git has no room to check out."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def answer(self, call: Call) -> Finished:
        if "add" in call.argv:
            return finished(128, stderr=self.text.encode())
        return RUNNER.run(
            call.argv, timeout_s=call.timeout_s, cwd=call.cwd, env=call.env
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"fatal: mkdir: {os.strerror(errno.ENOSPC)}", os.strerror(errno.ENOSPC)),
        # as git 2.39 says it of files: the cause is not in it
        (
            "error: unable to write file a.py\nfatal: Could not reset index file",
            "unable to write file a.py",
        ),
    ],
)
def test_a_full_disk_is_named(two: Repo, temporary: Path, text: str, said: str) -> None:
    """The folder and what to do are; nothing is left."""
    repository = Repository.at(str(two.root), Full(text))

    with pytest.raises(RevisionError) as caught, worktree(repository, "c" * 40):
        pytest.fail("there is no worktree")

    assert str(temporary) in str(caught.value)
    assert f"{said}; make room there" in str(caught.value)
    assert not list(temporary.iterdir())


def test_a_body_without_room_is_told(two: Repo, temporary: Path) -> None:
    """What a run writes beside the worktree may not fit either."""
    with (
        pytest.raises(RevisionError, match="make room there, or set TMPDIR"),
        worktree(at(two), at(two).commit_of("HEAD")),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert not list(temporary.iterdir())


def test_other_errors_of_the_body_are_its_own(two: Repo) -> None:
    """Only a full disk is the worktree's."""
    with pytest.raises(PermissionError), worktree(at(two), at(two).commit_of("HEAD")):
        raise PermissionError(errno.EACCES, "x")


@pytest.mark.parametrize("inside", [True, False])
def test_the_temporary_folder_must_be_elsewhere(
    two: Repo, monkeypatch: pytest.MonkeyPatch, *, inside: bool
) -> None:
    """Not in the working tree, and without what separates the entries of Python's path."""
    folder = two.root / "tmp" if inside else two.outer / f"a{os.pathsep}b"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)

    with (
        pytest.raises(RevisionError, match="set TMPDIR to another folder"),
        worktree(at(two), at(two).commit_of("HEAD")),
    ):
        pytest.fail("there is no worktree")


def test_a_generated_file_is_carried(two: Repo) -> None:
    """By its path, or by a pattern."""
    two.write("pkg/_version.py", "v = 2\n")
    two.write("pkg/gen_a.py", "")
    two.write(".gitignore", "_version.py\ngen_*.py\n")
    carry = ("pkg/_version.py", "pkg/gen_*.py")

    with worktree(at(two), at(two).commit_of("HEAD"), carry=carry) as tree:
        assert Path(tree.path, "pkg/_version.py").read_text() == "v = 2\n"
        assert Path(tree.path, "pkg/gen_a.py").exists()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nowhere.py", "the working tree has no such file"),
        ("../outside.py", "the working tree has no such file"),
        ("a.py", "it is code of this one"),
        ("core.so", "it is code of this one"),
    ],
)
def test_code_of_the_working_tree_is_not_carried(
    two: Repo, temporary: Path, path: str, text: str
) -> None:
    """It would be measured on both sides."""
    two.write("core.so", "")
    two.write("../outside.py", "")

    with (
        pytest.raises(RevisionError, match=text),
        worktree(at(two), at(two).commit_of("HEAD"), carry=(path,)),
    ):
        pytest.fail("there is no worktree")

    assert not list(temporary.iterdir())


@pytest.mark.parametrize("link", ["gen", "gen/keys", "gen/deep"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_file_is_carried_through_no_link(
    two: Repo, temporary: Path, link: str, inside: bool
) -> None:
    """A link of the old revision may lead out of its tree, to what is not ours."""
    victim = two.root / "other" if inside else two.outer / "victim"
    victim.mkdir()
    place = two.root / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(victim / "keys" if link == "gen/keys" else victim)
    two.commit()
    place.unlink()
    two.write(".gitignore", "gen/\n")
    two.git("rm", "-q", "--cached", link)
    two.commit()
    carry = "gen/deep/keys" if link == "gen/deep" else "gen/keys"
    two.write(carry, "mine")

    with (
        pytest.raises(RevisionError, match=f"{link} is a link there"),
        worktree(at(two), at(two).commit_of("HEAD~1"), carry=(carry,)),
    ):
        pytest.fail("there is no worktree")

    assert not list(victim.iterdir())
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("taken", ["gen", "gen/keys/file"])
def test_a_file_is_not_carried_to_a_path_that_is_taken(
    two: Repo, temporary: Path, taken: str
) -> None:
    """A file in the place of its folder, or a folder in its own."""
    two.write(taken, "of the old revision")
    two.commit()
    two.git("rm", "-q", "-r", "gen")
    two.write(".gitignore", "gen/\n")
    two.commit()
    two.write("gen/keys", "mine")

    with (
        pytest.raises(RevisionError, match="the path is taken there"),
        worktree(at(two), at(two).commit_of("HEAD~1"), carry=("gen/keys",)),
    ):
        pytest.fail("there is no worktree")

    assert not list(temporary.iterdir())


def test_a_partial_clone_whose_remote_is_gone_says_what_mends_it(
    two: Repo, temporary: Path
) -> None:
    """Git fetches the files of a commit when it is checked out, and cannot."""
    two.git("config", "uploadpack.allowFilter", "true")
    clone = two.outer / "partial"
    uri = two.root.as_uri()
    two.git("clone", "-q", "--filter=blob:none", uri, str(clone))
    two.root.rename(two.outer / "moved")
    repository = Repository.at(str(clone), RUNNER)

    with (
        pytest.raises(RevisionError, match="git fetch --refetch --no-filter"),
        worktree(repository, repository.commit_of("HEAD~1")),
    ):
        pytest.fail("there is no worktree")

    assert not list(temporary.iterdir())


def test_files_of_lfs_are_pointers_where_it_is_not_installed(
    two: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git says no word of its filter, and the remark names what is to be installed."""
    two.write(".gitattributes", "*.bin filter=lfs\n")
    two.write("big.bin", "version https://git-lfs.github.com/spec/v1\n")
    two.commit()
    two.git("config", "filter.lfs.process", "git-lfs-is-not-there filter-process")
    two.git("config", "filter.lfs.smudge", "git-lfs-is-not-there smudge -- %f")
    two.git("config", "filter.lfs.required", "true")
    monkeypatch.setattr("shutil.which", lambda _: None)

    with worktree(at(two), at(two).commit_of("HEAD")) as tree:
        assert "spec/v1" in Path(tree.path, "big.bin").read_text()
        (remark,) = tree.remarks
        assert "git-lfs is not installed" in remark
        assert "install git-lfs, then git lfs fetch --all" in remark


def test_an_empty_submodule_is_remarked(two: Repo) -> None:
    """The working tree has it not either: a clone without --recurse-submodules."""
    origin = Repo.make(two.outer, "origin")
    origin.two_commits("core.py")
    two.git("submodule", "add", "-q", str(origin.root), "vendor")
    two.commit()
    clone = two.outer / "clone"
    two.git("clone", "-q", str(two.root), str(clone))
    repository = Repository.at(str(clone), RUNNER)

    with worktree(repository, repository.commit_of("HEAD")) as tree:
        assert tree.remarks == (
            "the submodule vendor is empty: the working tree has it not",
        )


def test_a_submodule_that_lacks_the_commit_is_named(two: Repo) -> None:
    """With the command that fetches it."""
    origin = Repo.make(two.outer, "origin")
    origin.two_commits("core.py")
    two.git("submodule", "add", "-q", str(origin.root), "vendor")
    two.git("update-index", "--cacheinfo", f"160000,{'1' * 40},vendor")
    two.git("commit", "-q", "-m", "x")

    with (
        pytest.raises(RevisionError, match="git -C vendor fetch"),
        worktree(at(two), at(two).commit_of("HEAD")),
    ):
        pytest.fail("there is no worktree")


def test_what_differs_is_known(two: Repo) -> None:
    """Changed, staged, untracked and removed files; never what git ignores."""
    two.write("b.py", "x")
    two.commit()
    (two.root / "b.py").unlink()
    two.write("a.py", "edited\n")
    two.write("c.py", "")
    two.write("_version.py", "")

    assert at(two).differing(at(two).commit_of("HEAD")) == {"a.py", "b.py", "c.py"}
    assert at(two).ignored(["_version.py", "a.py"]) == {"_version.py"}
    assert at(two).ignored([]) == set()

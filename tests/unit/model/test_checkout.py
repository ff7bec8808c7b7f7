"""The key of a test is the same in every checkout, and that of no other test."""

from __future__ import annotations

import pytest

from pytest_gpuperf.model.checkout import Checkout

HERE = Checkout(root="/home/me/proj")


@pytest.mark.parametrize(
    ("name", "portable"),
    [
        ("test_x", "test_x"),
        ("test_x[/home/me/proj/data/3.txt]", "test_x[{root}/data/3.txt]"),
        ("test_x[/home/me/proj]", "test_x[{root}]"),
        (
            "test_x[fast-/home/me/proj/a-/home/me/proj/b]",
            "test_x[fast-{root}/a-{root}/b]",
        ),
        ("test_x[a::b-/home/me/proj/c]", "test_x[a::b-{root}/c]"),
        ("test_x[--root=/home/me/proj/c]", "test_x[--root={root}/c]"),
        ("test_x[file:///home/me/proj/c]", "test_x[file://{root}/c]"),
        ("test_x[('/home/me/proj', 1)]", "test_x[('{root}', 1)]"),
        # other folders
        ("test_x[/home/me/proj-2/c]", "test_x[/home/me/proj-2/c]"),
        ("test_x[/home/me/project/c]", "test_x[/home/me/project/c]"),
        ("test_x[/home/me/proj.old/c]", "test_x[/home/me/proj.old/c]"),
        ("test_x[/mnt/home/me/proj/c]", "test_x[/mnt/home/me/proj/c]"),
        ("test_x[./home/me/proj/c]", "test_x[./home/me/proj/c]"),
        ("test_x[//home/me/proj/c]", "test_x[//home/me/proj/c]"),
    ],
)
def test_only_paths_of_the_folder_are_replaced(name: str, portable: str) -> None:
    """The folder is a token where a path begins with it, and nowhere else."""
    assert HERE.portable(name) == portable
    assert HERE.local(portable) == name


def test_a_short_folder_is_a_part_of_other_paths() -> None:
    """A checkout in /w changes no path that has a w."""
    short = Checkout(root="/w")

    assert (
        short.portable("t[/w/a-/b/w/c-/www/d-x/w-/w]")
        == "t[{root}/a-/b/w/c-/www/d-x/w-{root}]"
    )
    assert Checkout(root="/").portable("t[/w/a]") == "t[/w/a]"
    assert Checkout(root="").portable("t[/w/a]") == "t[/w/a]"


def test_each_spelling_of_the_folder_is_it() -> None:
    """A link to the checkout, and pytest's escapes, are the same folder."""
    linked = Checkout(root="/data/jörg/p", spellings=("/p", "/data/j\\xf6rg/p"))
    names = ("t[/data/jörg/p/x]", "t[/p/x]", "t[/data/j\\xf6rg/p/x]")

    assert {linked.portable(name) for name in names} == {"t[{root}/x]"}
    assert linked.relative("/p/tests/test_a.py") == "tests/test_a.py"
    assert linked.relative("/data/jörg/p/test_a.py") == "test_a.py"
    assert linked.relative("/pp/test_a.py") is None


@pytest.mark.parametrize("rootdir", ["", "packages/a", None])
def test_ids_of_keys_are_those_of_pytest(rootdir: str | None) -> None:
    """An id goes to its key and back wherever pytest's root folder lies in the checkout."""
    checkout = Checkout(root="/r/p", rootdir=rootdir)
    node_id = "tests/test_a.py::TestA::test_x[a/b-/r/p/data]"

    assert checkout.id_of(checkout.key_of(node_id)) == node_id


def test_most_keys_are_ids() -> None:
    """Where pytest's root folder is the checkout's, an id without a path is the key."""
    node_id = "tests/test_a.py::TestA::test_x[a/b]"

    assert HERE.key_of(node_id) == node_id
    assert Checkout(root="/r", rootdir="a").key_of(node_id) == f"a/{node_id}"

"""Rules of NVTX expressions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.collect.ncu.nvtx import NvtxFilter
from pytest_gpuperf.errors import ConfigError
from pytest_gpuperf.model.launch import DEFAULT_DOMAIN, NvtxDomain

STACKS = (
    ("run_test", "init_data"),
    ("run_test", "daxpy"),
    ("run_test", "check_results"),
)
# what NVIDIA's own reader chooses of the three stacks, 2026.3.1
MEASURED = [
    ("run_test/", [0, 1, 2]),
    ("run_test", []),
    ("daxpy/", [1]),
    ("run_test/daxpy", [1]),
    ("run_test/daxpy/", [1]),
    ("run_test/*/daxpy", [1]),
    ("run_test/+/daxpy", []),
    ("[run_test", [0, 1, 2]),
    ("[run_test/", [0, 1, 2]),
    ("daxpy]", [1]),
    ("run_test]", []),
    ("[daxpy", []),
    ("[run_test/daxpy]", [1]),
    ("run_test/daxpy]", [1]),
    ("daxpy/run_test", []),
    ("regex:.*a.*/", [0, 1]),
    ("regex:run_.*/", [0, 1, 2]),
    ("regex:da.py/", [1]),
    ("regex:run/", [0, 1, 2]),
    ("regex:^run/", [0, 1, 2]),
    ("regex:daxpy]", [1]),
    ("regex:.*@.+/", [0, 1, 2]),
    ("regex:nodom.*@.+", []),
    ("<default domain>@run_test/", [0, 1, 2]),
    ("nodomain@run_test/", []),
    ("nosuch/", []),
    ("run_test/*", [0, 1, 2]),
    ("*/daxpy", []),
    ("*/daxpy]", []),
    ("+/daxpy]", []),
    ("*", []),
    ("+", []),
    ("", []),
    ("[", []),
    ("]", []),
    ("@", []),
    ("run_test//daxpy", [1]),
    ("/daxpy", [1]),
    ("run_test,daxpy", []),
    ("Run_test/", []),
    ("run\\_test/", []),
    ("a@b@c/", []),
    ("regex:", []),
    ("[/", []),
    ("@/", []),
]


def chosen(
    includes: list[str] | None = None, excludes: list[str] | None = None
) -> list[int]:
    """Return which of the three stacks are chosen."""
    by_nvtx = NvtxFilter(includes, excludes)
    domains = [[NvtxDomain(name=DEFAULT_DOMAIN, stack=stack)] for stack in STACKS]
    return [place for place, each in enumerate(domains) if by_nvtx.chooses(each)]


def stacked(*stack: str, domain: str = DEFAULT_DOMAIN) -> list[NvtxDomain]:
    """Return what is open in one domain."""
    return [NvtxDomain(name=domain, stack=stack)]


def matches(expression: str, domains: Sequence[NvtxDomain]) -> bool:
    """Return whether a filter of one expression chooses a launch."""
    return NvtxFilter([expression]).chooses(domains)


def started(*names: str, domain: str = DEFAULT_DOMAIN) -> list[NvtxDomain]:
    """Return which start/end ranges are open in one domain."""
    return [NvtxDomain(name=domain, started=names)]


class TestAnExpression:
    @pytest.mark.parametrize(("expression", "expected"), MEASURED)
    def test_chooses_what_the_tool_chooses(
        self, expression: str, expected: list[int]
    ) -> None:
        """An expression that collects a launch finds it again in the report."""
        assert chosen([expression]) == expected

    @pytest.mark.parametrize("expression", ["/", "//", "regex:(/", "regex:(@a/"])
    def test_that_can_name_nothing_is_refused(self, expression: str) -> None:
        """NVIDIA's reader aborts the process on the first two."""
        with pytest.raises(ConfigError) as caught:
            matches(expression, stacked("a"))

        assert repr(expression) in str(caught.value)

    @pytest.mark.parametrize(
        ("expression", "stack", "expected"),
        [
            ("a/+/c", ("a", "b", "c"), True),
            ("a/+/c", ("a", "b", "b", "c"), False),
            ("a/*/c", ("a", "b", "b", "c"), True),
            ("a/*/c", ("a", "c"), True),
            ("a/*/*/c]", ("a", "b", "c", "d"), False),
            ("[b/c", ("a", "b", "c"), False),
            ("b/c", ("a", "b", "c"), True),
            ("a/c", ("a", "b", "c"), False),
            ("a/b", ("a", "x", "a", "b"), True),
            ("a]", ("a", "b", "a"), True),
        ],
    )
    def test_places_its_parts_in_the_stack(
        self, expression: str, stack: tuple[str, ...], *, expected: bool
    ) -> None:
        """Parts lie side by side, but for the ranges that a quantifier stands for."""
        assert matches(expression, stacked(*stack)) == expected

    @pytest.mark.parametrize(
        ("expression", "name"),
        [
            (r"a\/b/", "a/b"),
            (r"a\@b/", "a@b"),
            (r"\[a\]/", "[a]"),
            (r"\*/", "*"),
            (r"a\\/", "a\\"),
            (r"regex:a\/b$/", "xa/b"),
        ],
    )
    def test_names_a_range_with_the_grammars_own_characters(
        self, expression: str, name: str
    ) -> None:
        """A backslash takes a character out of the grammar."""
        assert matches(expression, stacked(name))

    def test_asks_for_all_of_several_start_end_ranges(self) -> None:
        """A comma means and; the order does not matter."""
        assert matches("a,b", started("b", "x", "a"))
        assert not matches("a,b", started("a"))
        assert not matches("a", stacked("a"))
        assert matches(r"a\,b", started("a,b"))

    def test_names_one_domain(self) -> None:
        """The same name in another domain is another range."""
        both = [*stacked("a", domain="one"), *stacked("b", domain="two")]

        assert matches("one@a/", both)
        assert not matches("two@a/", both)
        assert not matches("a/", both)
        assert matches("regex:o@b/", both)

    def test_never_names_a_range_without_a_name(self) -> None:
        """Not even a pattern that the empty text satisfies."""
        assert not matches("regex:.*/", stacked(""))
        assert not matches("", started(""))

    @given(
        st.lists(st.sampled_from(["a", "b", "*", "+"]), min_size=1, max_size=6),
        st.lists(st.sampled_from("ab"), max_size=8),
        st.booleans(),
        st.booleans(),
    )
    def test_is_the_regular_expression_over_the_stack(
        self, parts: list[str], stack: list[str], bottom: bool, top: bool
    ) -> None:
        """Two ways to say the same language agree."""
        import re

        pattern = "".join({"*": ".*", "+": "."}.get(part, part) for part in parts)
        pattern = ("^" if bottom else "") + pattern + ("$" if top else "")
        text = ("[" if bottom else "") + "/".join(parts) + ("]" if top else "/")
        expected = parts[0] not in "*+" and re.search(pattern, "".join(stack))

        assert matches(text, stacked(*stack)) == bool(expected)


class TestAFilter:
    @pytest.mark.parametrize(
        ("includes", "excludes", "expected"),
        [
            (None, None, [0, 1, 2]),
            ([], ["daxpy/"], [0, 2]),
            (["run_test/"], ["daxpy]"], [0, 2]),
            (["run_test/"], ["daxpy/"], [0, 2]),
            (["run_test/"], ["nosuch/"], [0, 1, 2]),
            (["daxpy/", "init_data/"], [], [0, 1]),
            (["run_test/", "nosuch/"], [], [0, 1, 2]),
        ],
    )
    def test_includes_and_then_excludes(
        self,
        includes: list[str] | None,
        excludes: list[str] | None,
        expected: list[int],
    ) -> None:
        """Excludes alone leave all others, as when ncu collects."""
        assert chosen(includes, excludes) == expected

    def test_tells_all_mistakes_at_once(self) -> None:
        """Also those of the other list."""
        with pytest.raises(ConfigError) as caught:
            NvtxFilter(["/", "a/"], ["regex:)/", "//"])

        assert all(each in str(caught.value) for each in ("'/'", "'regex:)/'", "'//'"))

    def test_refuses_one_text(self) -> None:
        """It would be taken letter by letter."""
        with pytest.raises(ConfigError, match="one text"):
            NvtxFilter("a/")

    def test_knows_whether_it_filters(self) -> None:
        """A launch outside all ranges is chosen by no condition."""
        assert not NvtxFilter()
        assert NvtxFilter().chooses([])
        assert NvtxFilter(excludes=["a/"])

# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What becomes free when copies go whose files have names, or share blocks, elsewhere."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.eviction.given_back import Content, Given, GivenBack, Link, total
from stowage_core.trees.shared_blocks import BLOCK, MOST_UNITS, Blocks, size

BOTH = {(1, 1): 2}
"""A file with two names: by device and inode."""


def content(name: str, own: int = 0, links: dict[tuple[int, int], int] | None = None, mask: int = 0) -> Content:
    """Return a copy with so many bytes of its own and one name each of files of 1000 bytes, which have so many."""
    files = {key: Link(1, of, 1000) for key, of in (links or {}).items()}
    shared = {0: mask} if mask else {}
    return Content(name, own + 1000 * len(files) + size(mask), 1 + len(files), files, shared)


def going(counted: GivenBack, *contents: Content) -> list[str]:
    return [name for one in contents if not counted.is_enough for name in counted.add(one)]


def wanted(bytes: int = 10**9, inodes: int = 0) -> GivenBack:
    return GivenBack(Given(bytes, inodes))


def test_what_has_no_other_name_counts_whole_and_no_more_goes_than_is_wanted() -> None:
    counted = wanted(150)
    assert going(counted, content("a", 100), content("b", 100), content("c", 100)) == ["a", "b"]
    assert counted.total == (200, 2) and not counted.held_back


def test_a_copy_whose_files_have_names_outside_stays() -> None:
    counted = wanted(50)
    assert going(counted, content("a", 11, BOTH), content("b", 100)) == ["a", "b"], "1 % comes back"
    counted = wanted(50)
    assert going(counted, content("a", 9, BOTH), content("b", 100)) == ["b"]
    assert list(counted.held_back) == ["a"] and counted.total == (100, 1)


def test_a_file_counts_in_the_copy_that_takes_its_last_name() -> None:
    counted = wanted()
    assert going(counted, content("a", 500, BOTH), content("b", 500, BOTH)) == ["a", "b"]
    assert (counted.given["a"], counted.given["b"]) == ((500, 1), (1500, 2))


def test_copies_that_give_back_only_together_go_together() -> None:
    counted = wanted(500)
    assert going(counted, content("a", 0, BOTH), content("c", 100), content("b", 0, BOTH)) == ["c", "a", "b"]
    assert not counted.held_back and counted.total.bytes == 1100


def test_a_copy_is_not_taken_along_when_another_does_without() -> None:
    counted = wanted(500)
    assert going(counted, content("a", 0, BOTH), content("b", 500, BOTH)) == ["b"]
    assert list(counted.held_back) == ["a"]


def test_a_copy_that_others_need_little_is_not_taken_along() -> None:
    counted = wanted(10**6)
    large = content("a", 0, {(1, number): 3 for number in range(200)} | BOTH)
    assert going(counted, large, content("b", 10**5, {(1, 1): 2})) == ["b"]


def test_three_copies_that_have_one_file() -> None:
    three = {(1, 1): 3}
    counted = wanted(1000)
    assert going(counted, *(content(name, 0, three) for name in "abc")) == ["a", "b", "c"]
    counted = wanted(1000)
    assert going(counted, *(content(name, 0, {(1, 1): 4}) for name in "abc")) == []
    assert total(content(name, 0, three) for name in "abc") == (1000, 4)


def test_with_one_of_an_earlier_round_both_are_looked_at_again() -> None:
    counted = GivenBack(Given(500), [content("a", 0, BOTH), content("x", 0, {(1, 2): 2})])
    assert going(counted, content("b", 0, BOTH)) == []
    assert counted.again == {"b": {"a"}}
    assert going(counted, content("y", 0, {(1, 3): 2})) == [] and "y" not in counted.again


def test_inodes_come_back_with_the_last_name_too() -> None:
    many = {(1, number): 2 for number in range(200)}
    counted = wanted(0, 100)
    assert going(counted, content("a", 10**6, many), content("b", 0, many)) == ["a", "b"]
    assert counted.total.inodes == 202
    counted = wanted(0, 100)
    assert going(counted, content("a", 10**6, many)) == []


def test_with_nothing_wanted_everything_goes_and_is_counted() -> None:
    counted = GivenBack(None)
    assert going(counted, content("a", 0, BOTH), content("b", 0, {(1, 2): 2})) == ["a", "b"]
    assert counted.total.bytes == 0


def test_blocks_that_something_outside_shares_do_not_come_back() -> None:
    counted = wanted(5 * BLOCK)
    assert going(counted, content("a", 0, None, 0b1111), content("b", 0, None, 0b1111), content("c", BLOCK * 9)) == [
        "a",
        "b",
        "c",
    ]
    counted = wanted(5 * BLOCK)
    assert going(counted, content("a", 0, None, 0b1111), content("c", BLOCK * 9)) == ["c"]
    assert list(counted.held_back) == ["a"]


def test_without_guessing_blocks_met_twice_make_no_copy_go() -> None:
    counted = GivenBack(Given(5 * BLOCK), guessing=False)
    contents = content("a", 0, None, 0b1111), content("b", 0, None, 0b1111), content("c", BLOCK * 5)
    assert going(counted, *contents, content("d", BLOCK)) == ["c"]
    assert list(counted.held_back) == ["a", "b"] and counted.guesses == {"a", "b"}
    assert total(contents).bytes == 9 * BLOCK and total(contents, guessing=False).bytes == 5 * BLOCK


def test_without_guessing_what_is_certain_of_a_copy_counts_and_so_do_last_names() -> None:
    counted = GivenBack(Given(10**6), [content("x", 0, None, 0b1000), content("y", 0, None, 0b10000)], guessing=False)
    assert going(counted, content("a", 100, None, 0b1), content("b", 0, BOTH), content("c", 0, BOTH, 0b1001)) == [
        "a",
        "b",
        "c",
    ]
    assert counted.total == (1100, 4) and counted.guesses == {"a", "c", "x"}


def test_blocks_that_a_copy_shares_with_itself_are_its_own() -> None:
    blocks = Blocks()
    blocks.add([(0, 300 * BLOCK), (1000 * BLOCK, BLOCK)])
    assert sum(map(size, blocks.once.values())) == 301 * BLOCK
    blocks.add([(255 * BLOCK, 2 * BLOCK)])
    assert sum(map(size, blocks.once.values())) == 299 * BLOCK
    blocks.add([(0, 300 * BLOCK)])
    assert sum(map(size, blocks.once.values())) == BLOCK, "met a third time, they are as little outside"


def test_so_many_shared_blocks_are_told_apart_and_what_is_beyond_does_not_come_back() -> None:
    blocks = Blocks(2)
    blocks.add([(0, 3 * 256 * BLOCK), (256 * BLOCK, BLOCK), (9 * 256 * BLOCK, BLOCK)])
    assert list(map(size, blocks.once.values())) == [256 * BLOCK, 255 * BLOCK]
    assert blocks.beyond == 257 * BLOCK
    copy = Content("a", 1000 * BLOCK, 1, {}, blocks.once, blocks.beyond)
    assert copy.alone() == ((1000 - 256 - 255 - 257) * BLOCK, 1)
    again = Content("b", 1000 * BLOCK, 1, {}, blocks.once, blocks.beyond)
    assert total([copy, again]).bytes == (2 * (1000 - 257) - 256 - 255) * BLOCK


def test_no_more_than_64_gib_of_shared_blocks_are_told_apart() -> None:
    blocks = Blocks()
    blocks.add([(0, 1 << 40)])
    assert len(blocks.once) == MOST_UNITS and blocks.beyond == (1 << 40) - (MOST_UNITS << 20)


def test_it_says_that_comparing_goes_on() -> None:
    said: list[str] = []
    links = {(1, number): Link(1, 2, 1000) for number in range(10_000)}
    counted = GivenBack(Given(10**9), alive=lambda: said.append(""))
    counted.add(Content("a", 10**7, 10_000, links, dict.fromkeys(range(10_000), 1)))
    assert len(said) == 20


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 1)), max_size=40), st.integers(0, 9000))
def test_never_more_is_counted_than_becomes_free(files: list[tuple[int, int, int]], amount: int) -> None:
    """Each file has a name in the first copy, maybe in the second, which may be the same, and maybe outside."""
    names: dict[int, Counter[int]] = {}
    for number, (first, second, outside) in enumerate(files):
        # 4 is no copy, and 5 none either: these have one name less.
        held = Counter(one for one in (first, second) if one < 4)
        held[9] = outside
        names[number] = held
    contents = []
    for copy in range(4):
        mine = {number: held for number, held in names.items() if held[copy]}
        links = {
            (1, number): Link(held[copy], sum(held.values()), 1000)
            for number, held in mine.items()
            if held[copy] < sum(held.values())
        }
        contents.append(Content(str(copy), 1000 * len(mine) + 4, 1 + len(mine), links))
    counted = wanted(amount)
    gone = going(counted, *contents)
    assert sorted([*gone, *counted.held_back]) == sorted({*gone, *counted.held_back}), "each once"
    free = sum(1000 for held in names.values() if sum(held.values()) == sum(held[int(name)] for name in gone))
    assert counted.total.bytes <= free + 4 * len(gone)
    if not counted.held_back:
        assert counted.total.bytes == free + 4 * len(gone) == total(contents[int(name)] for name in gone).bytes


@pytest.mark.parametrize("more", [0, 1])
def test_it_is_enough_at_the_mark(more: int) -> None:
    counted = wanted(100 + more)
    assert going(counted, content("a", 100), content("b", 100)) == ["a", "b"][: 1 + more]

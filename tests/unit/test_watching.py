# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of watching that look at no filesystem."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.trees.watching.errors import WatchError
from stowage_core.trees.watching.events import Lost, directories
from stowage_core.trees.watching.forest import NOTHING, NOWHERE, Forest, Sums
from stowage_core.trees.watching.hard_links import HardLinks, Linked
from stowage_core.trees.watching.known import Known
from stowage_core.trees.watching.listing import FOREVER, Listed
from stowage_core.trees.watching.mounts_below import Below, Table

MODIFY, CREATE, OVERFLOW = 0x2, 0x100, 0x4000


def event(mask: int = MODIFY, handle: bytes = b"", kind: int = 1, version: int = 3) -> bytes:
    info = struct.pack("=BBHQIi", kind, 0, 20 + len(handle), 7, len(handle), 1) + handle if handle else b""
    return struct.pack("=IBBHQii", 24 + len(info), version, 0, 24, mask, -1, 1) + info


def handle_of(name: bytes) -> bytes:
    return struct.pack("=Ii", len(name), 1) + name


def test_events_tell_the_handles_of_directories() -> None:
    events = event(handle=b"12345678") + event(CREATE | MODIFY, b"123456789012", kind=3)
    assert list(directories(events)) == [(handle_of(b"12345678"), False), (handle_of(b"123456789012"), True)]
    assert list(directories(b"")) == []


@pytest.mark.parametrize(
    "lost",
    [event(OVERFLOW), event(OVERFLOW, b"12345678"), event(), event(handle=b"12345678", kind=2),
     event(handle=b"12345678", version=4)],
    ids=["overflow", "overflow with a handle", "no handle", "other information", "other version"],
)  # fmt: skip
def test_events_that_say_less_than_what_changed_lose_everything(lost: bytes) -> None:
    found = directories(event(handle=b"12345678") + lost)
    assert next(found) == (handle_of(b"12345678"), False)
    with pytest.raises(Lost):
        next(found)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "hold", "hold", "more", "move", "remove", "ask"]),
        st.integers(0, 30),
        st.integers(0, 30),
        st.integers(0, 10**18),
    )
)


@given(STEPS)
def test_sums_below_directories_are_those_of_all_in_them(steps: list[tuple[str, int, int, int]]) -> None:
    forest = Forest()
    parents: dict[int, int] = {}
    owns: dict[int, Sums] = {}

    def is_in(node: int, around: int) -> bool:
        while node not in (around, NOWHERE):
            node = parents[node]
        return node == around

    def check(node: int) -> None:
        expected = NOTHING
        for one, own in owns.items():
            if is_in(one, node):
                expected = expected.plus(own)
        assert forest.total(node) == expected
        assert sorted(forest.children(node)) == sorted(one for one, parent in parents.items() if parent == node)

    for number, (what, first, second, size) in enumerate(steps):
        known = sorted(parents)
        node = known[first % len(known)] if known else NOWHERE
        other = known[second % len(known)] if known and second % 5 else NOWHERE
        if what == "add":
            new = forest.add(b"%d" % number, other, 1)
            assert new not in parents
            assert forest.nodes[forest.handle(new)] == new
            parents[new], owns[new] = other, NOTHING
        elif node == NOWHERE:
            continue
        elif what == "hold":
            owns[node] = Sums(size, first, second, 3, 1)
            forest.hold(node, owns[node], 0, 0)
        elif what == "more":
            owns[node] = owns[node].plus(Sums(0, 1, 8, 0, 1))
            forest.hold_more(node, Sums(0, 1, 8, 0, 1))
        elif what == "move":
            if other == NOWHERE or not is_in(other, node):
                parents[node] = other
                forest.move(node, other)
        elif what == "remove":
            gone = [one for one in parents if is_in(one, node)]
            assert sorted(forest.remove(node)) == sorted(gone)
            for one in gone:
                del parents[one], owns[one]
        else:
            check(node)
    for node in parents:
        check(node)
    assert len(forest) == len(parents)


def test_a_chain_of_directories_is_added_up_in_one_go() -> None:
    forest = Forest()
    node = root = forest.add(b"root", NOWHERE, 1)
    for number in range(10_000):
        node = forest.add(b"%d" % number, node, 1)
        forest.hold(node, Sums(1, 0, 0, 1, 1), 0, 0)
    assert forest.total(root) == Sums(10_000, 0, 0, 10_000, 10_000)


def test_more_bytes_than_can_be_counted_are_refused() -> None:
    forest = Forest()
    root = forest.add(b"root", NOWHERE, 1)
    for number in range(3):
        forest.hold(forest.add(b"%d" % number, root, 1), Sums(7 * 10**18), 0, 0)
    with pytest.raises(WatchError, match="64 bits"):
        forest.total(root)


def test_where_an_inode_may_be() -> None:
    forest = Forest()
    nodes = [forest.add(b"%d" % number, NOWHERE, 1) for number in range(3)]
    for node, (lowest, highest) in zip(nodes, [(1, 10), (20, 30), ((1 << 64) - 1, 0)]):
        forest.hold(node, NOTHING, lowest, highest)

    def may_have(*inodes: int) -> list[int]:
        return [node for node in nodes if forest.may_have(node, inodes)]

    assert may_have(1) == may_have(10, 15) == nodes[:1]
    assert may_have(15, 25) == nodes[1:2]
    assert may_have(15, 31) == []


FOUND = st.dictionaries(
    st.integers(1, 6), st.tuples(st.integers(0, 9), st.integers(2, 5), st.integers(1, 3)), max_size=4
)


@given(st.lists(st.tuples(st.integers(0, 4), FOUND)))
def test_a_file_with_several_links_counts_once_wherever_its_names_are(
    steps: list[tuple[int, dict[int, tuple[int, int, int]]]],
) -> None:
    links = HardLinks()
    found: dict[int, dict[int, Linked]] = {}
    latest: dict[int, Linked] = {}
    for node, inodes in steps:
        found[node] = {inode: Linked(size, size + 1, more, names) for inode, (size, more, names) in inodes.items()}
        latest.update(found[node])
        links.hold(node, found[node], True)
        names: Counter[int] = Counter()
        for each in found.values():
            names.update({inode: one.names for inode, one in each.items()})
        for nodes in (set(found), {0, 1}, {2}):
            inside = {inode for one in nodes for inode in found.get(one, {})}
            sums = sum(latest[inode].size for inode in inside), sum(latest[inode].blocks for inode in inside)
            assert links.sums(nodes) == (*sums, len(inside))
            if nodes == set(found):
                assert links.sums(None) == (*sums, len(inside))
        loose = {inode for inode in names if latest[inode].links > names[inode]}
        assert set(links.loose()) == {one for one, each in found.items() if loose & each.keys()}
    for node in found:
        links.remove(node)
    assert links.sums(None) == (0, 0, 0)
    assert not links.state_bytes


def test_other_names_are_looked_for_once() -> None:
    links = HardLinks()
    links.hold(1, {7: Linked(1, 1, 2, 1), 8: Linked(1, 1, 2, 2)}, True)
    assert links.unsearched() == links.unsearched() == [7]  # both names of the other one are known
    links.searched()
    assert links.unsearched() == []
    links.hold(1, {7: Linked(5, 1, 3, 1)}, True)
    assert links.unsearched() == []
    links.remove(1)
    links.hold(1, {7: Linked(1, 1, 2, 1)}, True)
    assert links.unsearched() == [7]
    links.hold(2, {9: Linked(1, 1, 2, 1)}, False)
    assert links.unsearched() == [7], "the other one had no second name when this one came"


class Node(int):
    """A number that says how often such ones were compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Node.compared += 1
        return int(self) == other

    def __ne__(self, other: object) -> bool:
        Node.compared += 1
        return int(self) != other

    __hash__ = int.__hash__


def test_a_file_with_very_many_names_takes_no_look_at_all_of_them_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "compared", 0)
    links = HardLinks()
    nodes = [Node(number) for number in range(2000)]
    for node in nodes:
        links.hold(node, {7: Linked(3, 1, 2001, 1)}, True)
    assert sorted(links.sharing([nodes[5]])) == sorted(links.loose()) == list(range(2000))
    assert sorted(links.sharing(nodes)) == list(range(2000))
    assert links.state_bytes >= 2000 * 64
    links.hold(nodes[0], {7: Linked(3, 1, 2001, 2)}, True)
    assert not list(links.loose())
    for node in nodes:
        links.remove(node)
    assert Node.compared <= 20 * 2000
    assert not links.state_bytes


def listed(newest: float = 0.0, **own: Any) -> Listed:
    return Listed(Sums(directories=1, **own), {}, 0, 0, newest)


def test_a_directory_is_listed_each_time_while_its_files_may_change_by_themselves() -> None:
    known = Known(settles_s=50)
    node = known.forest.add(b"root", NOWHERE, 1)
    known.hold(node, listed(newest=100), now=149, has_grown=False)
    assert known.restless == {node: 150}
    known.settle_later(node, now=120)
    assert known.restless == {node: 170}
    known.hold(node, listed(newest=100), now=150, has_grown=False)
    assert known.restless == {}
    known.hold(node, listed(newest=FOREVER), now=10**12, has_grown=False)
    known.settle_later(node, now=10**12)
    assert known.restless == {node: FOREVER}
    below = [known.forest.add(b"%d" % number, node, 1) for number in range(1000)]
    before = known.state_bytes
    for one in below:
        known.settle_later(one, now=10**12)
    assert known.state_bytes - before > 1000 * 50, "that takes memory, too"


def test_how_many_directories_are_listed_each_time() -> None:
    known = Known(settles_s=50)
    steady, fresh, linked, both, over = (known.forest.add(b"%d" % number, NOWHERE, 1) for number in range(5))
    assert known.how_many_unsteady() == 0
    known.hold(steady, listed(newest=100), now=150, has_grown=False)
    for node in (fresh, both):
        known.hold(node, listed(newest=100), now=149, has_grown=False)
    for node in (linked, both):
        known.links.hold(node, {inode: Linked(1, 1, 3, 1) for inode in (7, 8)}, True)
    known.mounted.add(over)
    assert known.how_many_unsteady() == 4, "each counts once, whatever the reasons"
    known.hold(steady, listed(newest=FOREVER), now=10**12, has_grown=False)
    assert known.how_many_unsteady() == 5


def test_a_directory_that_was_moved_keeps_what_is_known_of_it() -> None:
    known = Known(settles_s=0)
    root = known.forest.add(b"root", NOWHERE, 1)
    known.roots[root] = 5.0
    here, there = (known.forest.add(name, root, 1) for name in (b"here", b"there"))
    moved, gone = (known.forest.add(name, here, 1) for name in (b"moved", b"gone"))
    for node in (root, here, there, moved, gone):
        known.hold(node, listed(bytes=10), now=1, has_grown=False)
    known.orphan(moved)
    known.orphan(gone)
    assert not known.within(root)(moved)
    assert known.forest.total(root).bytes == 30
    known.move(moved, there)
    known.dirty.add(gone)
    known.drop_orphans()
    assert known.forest.total(root) == Sums(40, 0, 0, 0, 4)
    assert known.dirty == set()
    assert known.began(moved) == 5.0
    assert known.within(there)(moved)
    assert not known.within(there)(here)


def test_a_tree_that_is_to_be_listed_again_is_followed_for_a_while() -> None:
    known = Known(settles_s=0)
    roots = [known.forest.add(name, NOWHERE, 1) for name in (b"one", b"two")]
    inner = known.forest.add(b"inner", roots[0], 1)
    known.forgotten.update({roots[0]: 100.0, roots[1]: 200.0, inner: 100.0})
    known.drop_forgotten(99.0)
    assert len(known.forest) == 3
    known.drop_forgotten(100.0)
    assert list(known.forest) == [roots[1]]
    assert known.forgotten == {roots[1]: 200.0}


def test_a_small_tree_takes_no_look_at_those_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    parent = Forest.parent
    monkeypatch.setattr(Forest, "parent", lambda self, node: (asked.append(node), parent(self, node))[1])
    known = Known(settles_s=0)
    pairs: list[tuple[int, int]] = []
    for number in range(400):
        root = known.forest.add(b"r%d" % number, NOWHERE, 1)
        below = known.forest.add(b"b%d" % number, root, 1)
        own = {number: Linked(5, 8, 2, 2)}
        shared = {1000 + number // 2: Linked(7, 8, 2, 1)}  # with the tree beside it
        for node, links, newest in ((root, shared, 0.0), (below, own, FOREVER if number % 2 else 0.0)):
            known.hold(node, Listed(Sums(directories=1), links, 0, 0, newest), now=1, has_grown=False)
        known.roots[root] = 1.0
        known.dirty.add(below)
        pairs.append((root, below))
    known.restless[pairs[0][0]] = FOREVER
    for number, (root, below) in enumerate(pairs):
        assert known.link_sums(root) == (12, 16, 2)
        assert known.among(known.dirty, root) == [below]
        unsteady = {root} if number == 0 else {root, below} if number == 1 else {below} if number % 2 else set()
        assert set(known.unsteady(root, known.within(root))) == unsteady
    assert len(asked) <= 400 * 20


MOUNTS = b"""\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
30 20 8:2 / /data rw - ext4 /dev/sdb rw
31 30 8:3 / /data/a/b rw - xfs /dev/sdc rw
32 31 8:3 / /data/a/b/c rw - xfs /dev/sdc rw
33 30 8:2 /x /data/a/b/d/e rw - ext4 /dev/sdb rw
34 30 8:2 /x /data/z rw - ext4 /dev/sdb rw
35 30 8:2 /x /data\\040b rw - ext4 /dev/sdb rw
36 30 0:9 / /data rw - tmpfs none rw
"""


def test_what_is_mounted_below_and_not_hidden() -> None:
    table = Table(MOUNTS)
    assert table.below("/data", 30) == [Below(("a", "b"), "8:3"), Below(("z",), "8:2")]
    assert table.below("/data/a", 30) == [Below(("b",), "8:3")]
    assert table.below("/data/a/b", 31) == [Below(("c",), "8:3")]
    mount = table.mount(3), table.mount(30)
    assert mount[0] is None
    assert mount[1] is not None and mount[1].device == "8:2"

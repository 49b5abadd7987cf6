# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stays as it is while a backend runs, position by position, and the one way out."""

from __future__ import annotations

from typing import Any

import pytest

from stowage_core.drives.declared import Problems
from stowage_core.tiers.declared import Backend, read_backends
from stowage_core.tiers.frozen import check_unchanged


def chat(*groups: Any) -> Backend:
    """A backend of groups that are a tier's path, a path and hosts, or None for a group without a tier."""
    members = []
    for index, group in enumerate(groups):
        path, hosts = group if isinstance(group, tuple) else (group, [f"h{index}"])
        members.append({"hosts": hosts, "local_disks": [{"path": path}] if path else []})
    return read_backends([{"name": "chat", "members": members}])[0]


BEHIND = "what its members wrote would stay on their hosts with nothing addressing it"
ONLY = "put it back; only deletion of the backend gives it up"
LAST = "put it back, or drop the whole group, which is the last"
EARLIER = "put it back; only the last group can be dropped"
KNOWN = "groups are known by their position"
ADDED = (
    "a tier cannot be added to a group that runs: its members would have to restart to have the directory; "
    "put it on a new group behind the last, or delete the backend"
)


@pytest.mark.parametrize(
    ("recorded", "declared", "problems"),
    [
        (
            chat("/a"),
            chat("/b"),
            [
                f"members[0].local_disks[0].path: '/b' was '/a', and the tier of a group that runs stays there: "
                f"{BEHIND}; {ONLY}"
            ],
        ),
        (
            chat("/a", "/b"),
            chat("/a", "/c"),
            [
                f"members[1].local_disks[0].path: '/c' was '/b', and the tier of a group that runs stays there: "
                f"{BEHIND}; {LAST}"
            ],
        ),
        (chat(None), chat("/a"), [f"members[0].local_disks: {ADDED}"]),
        (
            chat("/a"),
            chat(None),
            [f"members[0].local_disks: the tier '/a' cannot be taken off a group that runs: {BEHIND}; {ONLY}"],
        ),
        (
            chat("/a", None),
            chat(None, None),
            [f"members[0].local_disks: the tier '/a' cannot be taken off a group that runs: {BEHIND}; {EARLIER}"],
        ),
        (
            chat("/a", "/b"),
            chat(None, "/c"),
            [
                f"members[0].local_disks: the tier '/a' cannot be taken off a group that runs: {BEHIND}; {EARLIER}",
                f"members[1].local_disks[0].path: '/c' was '/b', and the tier of a group that runs stays there: "
                f"{BEHIND}; {LAST}",
            ],
        ),
        (chat("/a", "/b"), chat("/b", "/a"), [f"members[0]: was members[1]; {KNOWN}; keep their order"]),
        (chat(None, "/b"), chat("/b", None), [f"members[0]: was members[1]; {KNOWN}; keep their order"]),
        (
            chat(("/kv", ["a"]), ("/kv", ["b"])),
            chat(("/kv", ["b"]), ("/kv", ["a"])),
            [f"members[0]: was members[1]; {KNOWN}; keep their order"],
        ),
        (
            chat("/a", "/b", "/c"),
            chat("/a", "/c"),
            [
                f"members[1]: was dropped, and what was members[2] took its place; {KNOWN}; "
                "only the last can be dropped: put this one back"
            ],
        ),
        (
            chat(None, "/b"),
            chat("/b"),
            [
                f"members[0]: was dropped, and what was members[1] took its place; {KNOWN}; "
                "only the last can be dropped: put this one back"
            ],
        ),
        (
            chat(("/kv", ["a"]), ("/kv", ["b"])),
            chat(("/kv", ["b"])),
            [
                f"members[0]: was dropped, and what was members[1] took its place; {KNOWN}; "
                "only the last can be dropped: put this one back"
            ],
        ),
        (
            chat(("/kv", ["a"]), ("/kv", ["b"])),
            chat(("/kv", ["b", "c"])),
            [
                f"members[0]: was dropped, and what was members[1] took its place; {KNOWN}; "
                "only the last can be dropped: put this one back"
            ],
        ),
        (
            chat(("/kv", ["a"]), ("/kv", ["b"]), ("/kv", ["c", "d"])),
            chat(("/kv", ["a"]), ("/kv", ["d"])),
            [
                f"members[1]: was dropped, and what was members[2] took its place; {KNOWN}; "
                "only the last can be dropped: put this one back"
            ],
        ),
        (
            chat(("/kv", ["a"]), ("/kv", ["b"])),
            chat(("/kv", ["b", "c"]), ("/kv", ["d"])),
            [f"members[0]: was members[1]; {KNOWN}; keep their order"],
        ),
        (
            chat("/a", None),
            chat(None),
            [f"members[0].local_disks: the tier '/a' cannot be taken off a group that runs: {BEHIND}; {EARLIER}"],
        ),
        (
            chat("/a", "/b"),
            chat("/a", "/new", "/b"),
            [
                f"members[1].local_disks[0].path: '/new' was '/b', and the tier of a group that runs stays there: "
                f"{BEHIND}; {LAST}"
            ],
        ),
        (
            chat("/a", "/b", "/c"),
            chat("/a", "/b", "/b2", "/c"),
            [
                f"members[2].local_disks[0].path: '/b2' was '/c', and the tier of a group that runs stays there: "
                f"{BEHIND}; {LAST}"
            ],
        ),
        (
            chat("/a", "/b"),
            chat(None, "/a", "/b"),
            [
                f"members[0].local_disks: the tier '/a' cannot be taken off a group that runs: {BEHIND}; {EARLIER}",
                f"members[1]: was members[0]; {KNOWN}; put new groups behind the last",
            ],
        ),
    ],
)
def test_what_is_refused(recorded: Backend, declared: Backend, problems: list[str]) -> None:
    with pytest.raises(Problems) as caught:
        check_unchanged(recorded, declared)
    assert caught.value.problems == [f"chat: {problem}" for problem in problems]


@pytest.mark.parametrize(
    ("recorded", "declared"),
    [
        (chat("/a"), chat("/a")),
        (chat("/a", "/b"), chat("/a")),
        (chat("/a", "/b", None, "/c"), chat("/a")),
        (chat("/a", None), chat("/a")),
        (chat("/a"), chat("/a", "/b")),
        (chat(None), chat(None, "/b")),
        (chat(("/a", ["x"])), chat(("/a", ["x", "y"]))),
        (chat(("/a", ["x"])), chat(("/a", ["y"]))),
        (chat(("/a", None)), chat(("/a", []))),
        (chat(("/kv", ["a"]), ("/kv", ["b"])), chat(("/kv", ["a", "c"]), ("/kv", ["d"]))),
        # Dropping the last and moving its hosts to the first: as it stands there, the first has a host of its own.
        (chat(("/kv", ["a"]), ("/kv", ["b"])), chat(("/kv", ["a", "b"]))),
        (chat(("/kv", ["a"]), ("/kv", ["b"])), chat(("/kv", None))),
        (chat(("/kv", ["a"]), ("/kv", ["b"])), chat(("/kv", ["c"]))),
        (chat(("/kv", ["a"]), ("/kv", ["b"])), chat(("/kv", []))),
    ],
)
def test_what_is_not(recorded: Backend, declared: Backend) -> None:
    check_unchanged(recorded, declared)


def test_what_a_tier_may_hold_moves_either_way() -> None:
    def one(**tier: Any) -> Backend:
        disks = [{"path": "/a", **tier}]
        return read_backends([{"name": "chat", "members": [{"capacity_per_member": "1Gi", "local_disks": disks}]}])[0]

    full = one(capacity="1Gi", key_limit=100, eviction={"policy": "LRU"}, clean_after_delete=True)
    check_unchanged(full, one())
    check_unchanged(one(), full)


def test_a_tier_stays_with_its_store() -> None:
    def one(store: str) -> Backend:
        return read_backends([{"name": "chat", "members": [{"store": store, "local_disks": [{"path": "/a"}]}]}])[0]

    with pytest.raises(Problems) as caught:
        check_unchanged(one("mooncake"), one("files"))
    assert caught.value.problems == [
        f"chat: members[0].store: files was mooncake, and what the tier holds is kept by that one; {ONLY}"
    ]

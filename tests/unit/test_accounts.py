# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Users and groups, asked for by name and by number."""

from __future__ import annotations

from stowage_core.accounts import find_group, find_owner, find_user


def test_users_and_groups_by_name_and_number() -> None:
    root = find_user("root")
    assert root is not None and root == find_user("0") and (root.uid, root.name) == (0, "root")
    assert find_user("no-such-user") is None
    assert (find_owner("root"), find_owner("12345"), find_owner("no-such-user")) == (0, 12345, None)
    assert (find_group("root"), find_group("12345"), find_group("no-such-group")) == (0, 12345, None)

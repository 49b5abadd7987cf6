# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter that finds hosts whose layouts disagree."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.filter.layout_disagreements import FilterModule

layout_disagreements = FilterModule().filters()["layout_disagreements"]


def test_hosts_that_disagree() -> None:
    assert layout_disagreements({"a": {"RUNS_ROOT": "/x"}, "b": {"RUNS_ROOT": "/y"}}) == [
        "RUNS_ROOT is /x on a; /y on b"
    ]


def test_hosts_that_agree() -> None:
    assert layout_disagreements({"a": {"RUNS_ROOT": "/x"}, "b": {"RUNS_ROOT": "/x"}}) == []


@pytest.mark.parametrize("hosts", [None, [], "a", {"a": None}, {"a": "/x"}, {"a": {"RUNS_ROOT": 1}}])
def test_anything_else_is_an_error(hosts: Any) -> None:
    with pytest.raises(AnsibleFilterError, match="must be a dictionary of hosts"):
        layout_disagreements(hosts)

# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of a report: complete, in one file, and never taken over by a name. How it looks is for tests/browser."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from fleet_lab import NOW, Fleet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.stowage.host.plugins.plugin_utils.report import fleet
from ansible_collections.stowage.host.plugins.plugin_utils.report.hosts import Asked
from ansible_collections.stowage.host.plugins.plugin_utils.report.page import LIMITS, page

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;!--]]>{{ 7*7 }}</style></details>\x00\u202e\n"


class Parsed(HTMLParser):
    """The elements of a page with their attributes' names, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _value in attrs)))
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self.elements.append((f"/{tag}", ()))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        self.elements.append((f"comment {data}", ()))


def asked(known: dict[str, Any]) -> list[Asked]:
    return [Asked(name, facts, "" if facts else "no route to host", bool(facts)) for name, facts in known.items()]


def made(known: dict[str, Any]) -> str:
    return page(fleet.fleet(asked(known), NOW))


SMALL = Parsed(made(Fleet(3, 4).hosts)).elements


@pytest.fixture(scope="module")
def calm() -> Parsed:
    return Parsed(made(Fleet(12).hosts))


@pytest.mark.parametrize("bad_day", [False, True])
def test_names_are_text_wherever_they_are(bad_day: bool) -> None:
    found = Parsed(made(Fleet(12, named=lambda name: name + HOSTILE, bad_day=bad_day).hosts))
    assert found.elements == Parsed(made(Fleet(12, bad_day=bad_day).hosts)).elements
    assert "".join(found.text).count("<script>alert(1)</script>\"'><img") > 100
    assert not any("\x00" in text or "\u202e" in text for text in found.text)


# Control characters are shown escaped, so any text stays text; a page takes too long for many examples.
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet=st.sampled_from("<>\"'&/=;#-!{}%` \taiscrpt\u2028\ud800"), max_size=30))
def test_no_name_makes_markup(suffix: str) -> None:
    assert Parsed(made(Fleet(3, 4, lambda name: name + suffix).hosts)).elements == SMALL


def test_it_needs_nothing_else(calm: Parsed) -> None:
    addresses = [value for name, value in calm.attributes if name in ("src", "href", "action", "srcset", "data")]
    assert addresses and all(value.startswith("#") for value in addresses)
    assert not re.search(r"@import|url\(", "".join(calm.text))
    assert not any(name.startswith("on") or name == "style" for name, _value in calm.attributes)


def test_its_policy_allows_its_own_script_and_style_only(calm: Parsed) -> None:
    text = made(Fleet(3).hosts)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy.replace("&#39;", "'")


def test_every_link_leads_somewhere(calm: Parsed) -> None:
    places = {value for name, value in calm.attributes if name == "id"}
    assert {value[1:] for name, value in calm.attributes if name == "href"} <= places


def test_hosts_that_do_not_answer_are_on_it() -> None:
    text = made({"gpu-01": {"gathered": NOW, "gate": {"holds": []}}, "gpu-02": None})
    assert text.count("gpu-02") >= 2 and "no route to host" in text
    assert "1 <small>of 2</small>" in text


def test_a_fleet_of_which_nothing_is_known_has_no_figures() -> None:
    text = made({f"gpu-{number}": None for number in range(3)})
    assert not re.search(r"\b0 B\b|\b0 %", text)
    assert text.count("<i>not known</i>") >= 6


def test_an_inventory_without_hosts() -> None:
    assert "Storage of 0 hosts" in made({})


def test_what_is_left_out_is_told() -> None:
    drives = {"ml": [{"name": "a", "sources": [{"node_scope": "placed"}]}]}
    copies = {"ml.a": {"workspace": "ml", "drive": "a", "present": True, "bytes": 5, "allocated": 5}}
    text = made({f"gpu-{n:03}": {"gathered": NOW, "drives": drives, "copies": copies} for n in range(100)})
    assert f"And {100 - LIMITS['copies_of_drive']} more copies" in text
    assert f"And {100 - LIMITS['copies']} more copies" in text


@pytest.mark.parametrize("bad_day", [False, True])
def test_the_page_of_1000_hosts_is_no_larger_than_5_mb(bad_day: bool) -> None:
    some, more = (len(made(Fleet(number, 100, bad_day=bad_day).hosts).encode()) for number in (100, 200))
    # All lists but that of the hosts have come to their ends by then.
    assert some + 9 * (more - some) < 5 * 10**6


def test_what_holds_a_gate_is_told_in_part() -> None:
    holds = [{"reason": "quota", "text": f"user u{n} uses 2 B of 1 B", "user": f"u{n}"} for n in range(300)]
    text = made({"gpu-01": {"gathered": NOW, "gate": {"holds": holds}}})
    assert (
        f"And {300 - LIMITS['lines']} more reasons" in text and f"And {300 - LIMITS['attention']} more of them" in text
    )


def test_sums_by_user_say_what_is_not_in_them() -> None:
    def told(count: int, name: str) -> dict[str, Any]:
        return {"gathered": NOW, "accounts": {"users": {name: {"bytes": 10**9, "runs": 1}}, "count": {"users": count}}}

    text = made({"gpu-01": told(1, "ann"), "gpu-02": told(200, "bob")})
    assert "Users, the largest of 2 that hosts tell of" in text and "1 host has so many users that only" in text
    assert re.findall(r'class="note">(on [^<]*)<', text) == ["on 1 host, not known on 1"]
    every = made({"gpu-01": told(1, "ann"), "gpu-02": told(1, "bob")})
    assert "not known on" not in every and "Users, the largest of 2<" in every


def test_ages_are_as_of_when_it_was_made() -> None:
    text = made({"gpu-01": {"gathered": NOW - 7200}})
    assert 'title="2025-11-30T10:00:00Z">2 h ago</time>' in text
    assert "30 November 2025, 12:00 UTC" in text

# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The accounts that the daemon keeps: when they are made anew, recorded and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stowage_core import events, records
from stowage_core.accounting.quotas import Quotas
from stowage_core.accounting.totals import Location, Shares, User
from stowage_core.places import Places
from stowaged import accounts, declared
from stowaged.accounts import SECTION, Accounting
from stowaged.last_measured import last_accounts
from stowaged.sections import Sections
from stowaged.writer import Writing

TIGHT = Quotas(users={"ann": 100})


class DirectWriter:
    """Writes at once what the daemon has a child write."""

    def __init__(self) -> None:
        self.count = 0

    def do(self, writing: Writing) -> None:
        self.count += 1
        assert writing() == ""


class Host:
    def __init__(self, home: Path) -> None:
        self.places = Places.under(str(home))
        self.said: list[str] = []
        self.start()

    def start(self) -> None:
        """Start the daemon, as often as it is wanted."""
        self.writer = DirectWriter()
        self.sections = Sections(self.places, self.said.append)
        self.accounting = Accounting(self.places, self.sections, self.writer, self.said.append)  # type: ignore[arg-type]
        self.accounting.recall(last_accounts(self.places, lambda message: self.said.append(message["say"])))

    def look(self, size: int, quotas: Quotas = TIGHT, **more: Any) -> dict[str, Any]:
        """Look at runs of a user that take so much, and return the user's entry."""
        shares = Shares({"ann": User(1, size, allocated=4096)}, {}, 5.0)
        one = Location("runs", "/runs", **{"bytes": size, "measured": 5.0, "complete": True, "shares": shares, **more})
        self.accounting.look([one], quotas)
        section = self.sections.last(SECTION)
        assert section is not None and section == records.read(self.places.accounts_json)
        self.complete = section["complete"]
        entry: dict[str, Any] = section["users"]["ann"]
        return entry

    def told(self) -> list[tuple[str, str]]:
        return [(event["object"], event["reason"]) for event in events.read(self.places)]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_quota_is_told_once(host: Host) -> None:
    assert host.look(90)["exceeded_since"] is None and host.told() == []
    since = host.look(110)["exceeded_since"]
    assert since is not None and host.look(120)["exceeded_since"] == since
    assert host.told() == [("user/ann", "QuotaExceeded")] and host.said == ["user ann uses 110 B of 100 B"]
    assert host.look(100)["exceeded_since"] is None
    assert host.told()[1:] == [("user/ann", "QuotaKept")]


def test_it_stays_exceeded_when_the_daemon_is_started_again(host: Host) -> None:
    since = host.look(110)["exceeded_since"]
    host.start()
    assert host.look(110)["exceeded_since"] == since and host.writer.count == 0
    host.start()
    assert host.look(90, complete=False, reason="no disk")["exceeded_since"] == since and not host.complete
    assert host.told() == [("user/ann", "QuotaExceeded")]


def test_another_quota_holds_at_once(host: Host) -> None:
    host.look(110)
    assert host.look(110, Quotas(default_user=200)) == {
        "bytes": 110,
        "runs": 1,
        "runs_bytes": 110,
        "reflow_bytes": 0,
        "allocated": 4096,
        "quota": 200,
        "exceeded_since": None,
        "missing": "",
    }
    assert host.look(110, Quotas())["quota"] is None
    assert [reason for _object, reason in host.told()] == ["QuotaExceeded", "QuotaKept"]


def test_nothing_is_written_while_nothing_changes(host: Host) -> None:
    host.look(110)
    count = host.writer.count
    host.look(110)
    assert host.writer.count == count


def test_nothing_is_known_before_the_record_was_read(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    sections = Sections(places, lambda _text: None)
    Accounting(places, sections, DirectWriter(), lambda _text: None).look([], Quotas())  # type: ignore[arg-type]
    assert sections.last(SECTION) is None and records.read(places.accounts_json) is None


@pytest.mark.parametrize("content", ["{", "[]", '{"users": {}}', '{"users": {"ann": {"bytes": "5"}}, "teams": {}}'])
def test_a_record_that_is_no_record_is_made_anew(host: Host, content: str) -> None:
    host.look(110)
    Path(host.places.accounts_json).write_text(content)
    host.start()
    assert "it is made anew, as if no quota was exceeded before" in host.said[-1]
    assert host.look(110)["exceeded_since"] is not None


def test_a_full_disk_is_told(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device", host.places.accounts_json)

    monkeypatch.setattr(records, "write", full)
    text = accounts._record(host.places, {})
    assert text == f"{host.places.accounts_json}: No space left on device; the accounts recorded are old"


DISK = {"fstype": "ext4", "uuid": "u-1", "source": "/dev/nvme0n1"}
OTHER_DISK = {**DISK, "uuid": "u-2"}


@pytest.mark.parametrize(
    ("locations", "uuid", "mount_point"),
    [
        ({"state": ("/srv/root/state", "/srv", DISK, True)}, "u-1", "/srv"),
        ({"state": ("/srv/root/state", "/srv", DISK, False)}, "u-1", None),
        # A default location that is a mount of its own, and one that is elsewhere, say nothing of the root.
        ({"runs": ("/srv/root/runs", "/srv/root/runs", OTHER_DISK, True)}, None, None),
        ({"runs": ("/srv/runs", "/srv", OTHER_DISK, True)}, None, None),
        ({}, None, None),
    ],
)
def test_the_root_is_on_the_filesystem_of_what_is_in_it(
    tmp_path: Path, locations: dict[str, Any], uuid: str | None, mount_point: str | None
) -> None:
    keys = ("path", "mount_point", "filesystem", "require_mount")
    named = {name: dict(zip(keys, one)) for name, one in locations.items()}
    places = Places.under(str(tmp_path))
    records.write(places.layout_json, {"root": "/srv/root", "locations": named})
    root = declared.load(places, "gpu-01").root
    assert root is not None and (root.object, root.path) == ("root", "/srv/root")
    assert (None if root.filesystem is None else root.filesystem.uuid, root.mount_point) == (uuid, mount_point)

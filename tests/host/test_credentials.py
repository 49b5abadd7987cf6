# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Credentials in a shared cache, as the daemon finds them with the capabilities that it has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from copies_lab import Lab
from daemon_lab import Daemon, wait_for

from stowage_core import events, records


def test_a_token_that_nobody_else_may_read_is_told_and_not_read(
    disk: Path, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    cache = disk / "cache"
    token = cache / "hf/token"
    token.parent.mkdir(parents=True)
    token.write_text("hf_secret")
    token.chmod(0o600)
    os.utime(token, (1, 2))  # whoever reads it now changes the first
    for path in (cache, token.parent, token):
        os.chown(path, 1000, 1000)
    cache.chmod(0o700)
    daemon = start(Lab(disk, tmp_path))
    location = {"path": str(cache), "filesystem": None, "require_mount": False}
    records.write(daemon.places.layout_json, {"locations": {"cache": location}})
    daemon.start()
    wait_for(lambda: daemon.location("cache").get("complete"))
    assert daemon.location("cache")["credentials"] == [str(token)]
    shown = daemon.command("status").stdout
    assert "! cache: " in shown and "withdraw what it holds" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    told = [event for event in events.read(daemon.places) if event["reason"] == "CredentialsInSharedCache"]
    assert [(event["object"], event["path"]) for event in told] == [("location/cache", str(token))]
    assert token.stat().st_atime == 1
    token.unlink()
    wait_for(lambda: daemon.location("cache")["credentials"] == [])

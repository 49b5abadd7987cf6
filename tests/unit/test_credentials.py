# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files in shared caches that are called as credentials are: found, told once, and never opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stowage_core import events, mounts, records
from stowage_core.places import Places
from stowage_core.trees.measure import Usage
from stowaged import credentials, measuring, metrics, status
from stowaged.declared import Target
from stowaged.last_measured import record_path
from stowaged.measuring import Measuring


def put(path: Path, text: str = "hf_secret") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def find(path: Path) -> list[str]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return credentials.find(fd, str(path))
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "stored_tokens",
        "git_token",
        "cookies",
        ".git-credentials",
        ".netrc",
        "hf/token",
        "hf/stored_tokens",
        "credentials/git_token",
        "credentials/cookies",
        ".cache/huggingface/token",
        ".huggingface/token",
        "huggingface/token",
        "huggingface/stored_tokens",
        ".config/git/credentials",
        ".modelscope/token",
        ".modelscope/credentials/git_token",
    ],
)
def test_where_libraries_keep_credentials(tmp_path: Path, name: str) -> None:
    put(tmp_path / name)
    assert find(tmp_path) == [str(tmp_path / name)]


def test_what_is_called_so_and_is_none(tmp_path: Path) -> None:
    put(tmp_path / "models--org--name/snapshots/1/token")  # part of a model
    put(tmp_path / "stored_tokens", "")  # nothing is in it
    (tmp_path / "token").mkdir()
    (tmp_path / "cookies").symlink_to(put(tmp_path / "elsewhere/cookies"))
    (tmp_path / "credentials").symlink_to(tmp_path / "elsewhere")
    put(tmp_path / "hf")
    put(tmp_path / "credentials.json")
    assert find(tmp_path) == []


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    cache = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    put(cache / "token")
    assert find(cache) == [f"{cache}/token"]


class Host:
    def __init__(self, home: Path) -> None:
        self.places = Places.under(str(home / "host"))
        self.cache = home / "cache"
        self.cache.mkdir()

    def measure(self, name: str = "cache", path: str = "") -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        target = Target(f"location/{name}", str(self.cache / path))
        Measuring(self.places, [target], None, {}, mounts.read())(lambda message: found.append(dict(message)))
        return next(one for one in found if one.get("object") == target.object)

    def events(self) -> list[tuple[str, str]]:
        return [(one["object"], one["path"]) for one in events.read(self.places) if one["reason"] == credentials.REASON]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(measuring, "_beat", lambda send: None)
    return Host(tmp_path)


def test_each_is_told_once(host: Host) -> None:
    assert host.measure()["credentials"] == [] and host.events() == []
    token = put(host.cache / "token")
    for _again in range(2):
        assert host.measure()["credentials"] == [str(token)]
        assert host.events() == [("location/cache", str(token))]
    (told,) = events.read(host.places)
    assert "hf_secret" not in str(told) and str(token) in told["message"]
    token.unlink()
    assert host.measure()["credentials"] == []
    put(token)
    host.measure()
    assert len(host.events()) == 2  # it was away


class Incomplete:
    def measure(self, _fd: int) -> Usage:
        return Usage(problems=("x: Input/output error",), complete=False)


def test_they_are_told_of_a_cache_that_is_not_complete(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be read, or has another name each time, may not keep a token from being told."""
    token = put(host.cache / "token")
    with monkeypatch.context() as patched:
        patched.setattr(measuring, "_ENGINE", Incomplete())
        for _again in range(2):
            found = host.measure("hub_cache")
            assert (found["complete"], found["credentials"]) == (False, [str(token)])
            assert host.events() == [("location/hub_cache", str(token))], "each is told once"
    assert host.measure("hub_cache")["complete"] and len(host.events()) == 1


def test_caches_alone_are_looked_into(host: Host) -> None:
    put(host.cache / "token")
    assert "credentials" not in host.measure("state")
    assert host.measure("hub_cache")["credentials"] == [f"{host.cache}/token"]


def test_a_cache_in_another_is_looked_into_by_itself(host: Host) -> None:
    put(host.cache / "hf/hub/token")
    targets = [Target("location/cache", str(host.cache)), Target("location/hf_hub_cache", f"{host.cache}/hf/hub")]
    found: dict[str, Any] = {}
    Measuring(host.places, targets, None, {}, mounts.read())(lambda one: found.update({one.get("object", ""): one}))
    assert found["location/cache"]["credentials"] == []
    assert found["location/hf_hub_cache"]["credentials"] == [f"{host.cache}/hf/hub/token"]


def test_a_home_around_a_cache_that_lies_elsewhere(host: Host) -> None:
    """``HF_HOME`` given as what is around the cache of the hub: the token is beside it, and everybody's as well."""
    token = put(host.cache / "token")
    for name in ("hub", "datasets", "modelscope"):
        (host.cache / name).mkdir()
    assert host.measure("hf_hub_cache", "hub")["credentials"] == [str(token)]
    assert host.measure("hf_datasets_cache", "datasets")["credentials"] == [str(token)]
    assert host.measure("modelscope_cache", "modelscope")["credentials"] == []
    assert host.events() == [("location/hf_hub_cache", str(token)), ("location/hf_datasets_cache", str(token))]


def test_what_is_around_a_cache_in_another_is_that_ones(host: Host) -> None:
    token = put(host.cache / "hf/token")
    (host.cache / "hf/hub").mkdir()
    targets = [Target("location/cache", str(host.cache)), Target("location/hf_hub_cache", f"{host.cache}/hf/hub")]
    found: dict[str, Any] = {}
    Measuring(host.places, targets, None, {}, mounts.read())(lambda one: found.update({one.get("object", ""): one}))
    assert found["location/cache"]["credentials"] == [str(token)]
    assert found["location/hf_hub_cache"]["credentials"] == []


def test_what_cannot_be_looked_at_is_as_it_was(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    put(host.cache / "token")
    host.measure()

    def fails(fd: int, path: str, beside: bool) -> list[str]:
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(credentials, "find", fails)
    found = host.measure()
    assert found["credentials"] == [f"{host.cache}/token"] and found["complete"]
    assert (records.read(record_path(host.places, "location/cache")) or {})["credentials"] == [f"{host.cache}/token"]


def shown(**more: Any) -> dict[str, Any]:
    measured = {"bytes": 1, "files": 1, "measured": 990.0, "complete": True, "reason": "", "elsewhere": False}
    return {"location": "cache", "path": "/c", "available": True, "answers": True, "made": True, **measured, **more}


@pytest.mark.parametrize(
    ("more", "series"),
    [
        ({}, None),
        ({"credentials": None}, None),  # not looked yet: unknown is not zero
        ({"credentials": []}, "0.0"),
        ({"credentials": ["/c/token", "/c/.netrc"]}, "2.0"),
    ],
)
def test_the_metric(more: dict[str, Any], series: str | None) -> None:
    text = metrics.render("locations", {"locations": [shown(**more)]}).decode()
    line = f'stowage_shared_cache_credentials{{location="cache"}} {series}'
    assert (line in text) if series else ("stowage_shared_cache_credentials{" not in text)


def test_status_says_which(host: Host) -> None:
    one = shown(credentials=["/c/to\nken"])
    page = " ".join(status.render({"locations": {"locations": [one]}}, 200, now=1000.0))
    assert r"! cache: /c/to\nken is called as a file with credentials, and all workloads share this cache" in page

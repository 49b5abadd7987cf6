# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tiers on a host, as far as no root is needed: surveys, verdicts, images, records, store processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.errors import StowageError
from stowage_core.places import Places
from stowage_core.tiers import processes, recorded
from stowage_core.tiers.claim import can_write
from stowage_core.tiers.declared import Backend, MemberGroup, Tier
from stowage_core.tiers.image import read_users
from stowage_core.tiers.recorded import Claimed
from stowage_core.tiers.removal import _is_clean
from stowage_core.tiers.survey import Survey, survey, verdict

# -- The survey


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([], None),
        ([True, True], True),
        ([True, None], None),
        ([None], None),
        ([False, None, True], False),
        ([None, False], False),
    ],
)
def test_the_verdict_of_a_site(answers: list[bool | None], expected: bool | None) -> None:
    assert verdict(answers) is expected


@given(st.lists(st.sampled_from([True, False, None]), min_size=1))
def test_one_host_with_content_settles_it_and_one_that_is_silent_keeps_it_open(answers: list[bool | None]) -> None:
    assert (verdict(answers) is False) == (False in answers)
    assert (verdict(answers) is True) == (set(answers) == {True})


def test_entries_are_counted_dotfiles_included(tmp_path: Path) -> None:
    for name in (".hidden", "1.bucket"):
        (tmp_path / name).touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    found = survey(fd, 5.0)
    assert (found.entries, found.was_empty) == (2, False)
    os.close(fd)


def test_a_directory_that_cannot_be_read_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)

    def refuse(_fd: int) -> list[str]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "listdir", refuse)
    found = survey(fd, 5.0)
    assert (found.entries, found.was_empty) == (None, None)
    assert found.reason == "it cannot be read: Input/output error"
    names = iter([["a"], ["a", "b"]])
    monkeypatch.setattr(os, "listdir", lambda _fd: next(names))
    assert "somebody writes to it" in survey(fd, 5.0).reason
    os.close(fd)


# -- Who can write


@pytest.mark.parametrize(
    ("user", "owner", "group", "mode", "expected"),
    [
        ((65532, 0), 65532, 0, 0o750, True),
        ((65532, 0), 65532, 0, 0o550, False),
        ((65532, 0), 65532, 0, 0o277, False),  # the owner's bits count for the owner
        ((65532, 0), 0, 0, 0o770, True),
        ((65532, 0), 0, 0, 0o750, False),
        ((65532, 1), 0, 0, 0o757, True),
        ((65532, 1), 0, 0, 0o755, False),
        ((0, 0), 1000, 1000, 0o000, True),
    ],
)
def test_who_can_write(user: tuple[int, int], owner: int, group: int, mode: int, expected: bool) -> None:
    assert can_write(user, owner, group, mode) is expected


@pytest.mark.parametrize(
    ("groups", "mode", "expected"),
    [
        ([], 0o770, False),
        ([5, 100], 0o770, True),
        ([5], 0o770, False),
        ([100], 0o757, False),  # the group's bits count for who is in it
        ([100], 0o755, False),
    ],
)
def test_who_can_write_by_another_group(groups: list[int], mode: int, expected: bool) -> None:
    assert can_write((65532, 0), 0, 100, mode, groups) is expected


# -- The image's user


class Engine:
    """Stands in for docker and podman: what ``id`` says by image, for those that are on the host."""

    def __init__(self, images: Mapping[str, str], there: tuple[str, ...] = ("docker",), code: int = 0) -> None:
        self.images = images
        self.there = there
        self.code = code
        self.asked: list[list[str]] = []

    def find(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.there else None

    def run(self, arguments: list[str]) -> tuple[int, str, str]:
        self.asked.append(arguments)
        if arguments[-1] not in self.images:
            return 1, "", "no such image"
        return (self.code, self.images[arguments[-1]], "") if "run" in arguments else (0, "", "")


def test_the_user_is_read_off_the_image_once() -> None:
    engine = Engine(
        {"store:1": "uid=1000(me) gid=1001(us) groups=1001(us)\n", "b": "uid=65532 gid=0(root) groups=0(root)"}
    )
    users, problems = read_users(["store:1", "", "store:1", "b"], engine.run, engine.find)
    assert users == {"store:1": (1000, 1001), "b": (65532, 0)}
    assert problems == []
    assert engine.asked[1] == [
        *("timeout", "--kill-after=5", "60"),
        *("/usr/bin/docker", "run", "--rm", "--pull", "never", "--network", "none", "--entrypoint", "id", "store:1"),
    ]
    assert len(engine.asked) == 4


@pytest.mark.parametrize(
    ("engine", "image", "why"),
    [
        (Engine({}), "store:1", "is not on this host, and is not pulled"),
        (Engine({}, there=()), "store:1", "there is no docker or podman on this host to read it with"),
        (Engine({"store:1": "sh: not found"}, code=127), "store:1", "did not tell its user: sh: not found"),
        (Engine({"store:1": "hello"}), "store:1", "did not tell its user: hello"),
        (Engine({"store:1": ""}, code=124), "store:1", "/usr/bin/docker did not answer within 60 s"),
        (Engine({}), "--privileged", "is no name of an image"),
        (Engine({}), "a b", "is no name of an image"),
    ],
)
def test_an_image_that_does_not_tell_is_said(engine: Engine, image: str, why: str) -> None:
    users, problems = read_users([image], engine.run, engine.find)
    assert users == {}
    assert problems == [f"image {image}: {why}; its user is taken to be 65532:0 where owner and group do not say"]


def test_an_engine_that_does_not_answer_is_not_asked_twice() -> None:
    asked = []

    def run(arguments: list[str]) -> tuple[int, str, str]:
        asked.append(arguments)
        return 137, "", ""

    users, problems = read_users(["store:1"], run, lambda name: f"/usr/bin/{name}")
    assert users == {} and len(asked) == 1
    assert "/usr/bin/docker did not answer within 60 s" in problems[0]


# -- Records

BACKEND = Backend("chat", (MemberGroup(capacity_per_member=1 << 30, tier=Tier("/mnt/kv", clean_after_delete=True)),))


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    assert recorded.load_backends(places) == {} and recorded.load_claimed(places) == {}
    one = Claimed("/mnt/kv", "i-1", 5.0, Survey(2, 4.0))
    other = Claimed("/mnt/kv2", "i-2", 5.0, Survey(None, 4.0, "EIO"), [12, 1, 2])
    assert recorded.write_claimed(places, {"chat/0": one, "chat/1": other, "a/0": Claimed("/a", "i", 1.0)})
    assert recorded.load_claimed(places) == {"chat/0": one, "chat/1": other, "a/0": Claimed("/a", "i", 1.0)}
    recorded.write_claimed(places, {})
    assert not os.path.exists(places.tiers_found_json)


@pytest.mark.parametrize(
    "text", ['{"tiers": {"a/0": {}}}', '{"tiers": [1]}', '{"tiers": {"a/0": {"path": 1}}}', "[]", "{"]
)
def test_a_damaged_record_is_never_taken_for_none(tmp_path: Path, text: str) -> None:
    places = Places.under(str(tmp_path))
    for path in (places.tiers_found_json, places.tiers_json):
        os.makedirs(os.path.dirname(path))
        Path(path).write_text(text.replace("tiers", "backends") if path == places.tiers_json else text)
    with pytest.raises(StowageError):
        recorded.load_claimed(places)
    with pytest.raises(StowageError):
        recorded.load_backends(places)


def test_only_what_is_known_to_be_cleaned_is_cleaned() -> None:
    assert _is_clean({"chat": BACKEND}, "chat/0")
    for name in ("chat/1", "chat/x", "code/0", "chat"):
        assert _is_clean({"chat": BACKEND}, name) is None  # not known
    assert _is_clean({"chat": replace(BACKEND, members=(MemberGroup(tier=Tier("/mnt/kv")),))}, "chat/0") is False


# -- Store processes

PATH = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"


def test_the_environment_of_a_store() -> None:
    data = (
        b"A=1\0MOONCAKE_OFFLOAD_ENABLED=true\0" + PATH.encode() + b"=/kv\0" + PATH.encode() + b"=/b\0broken\0\xff=1\0"
    )
    assert processes.parse_environment(data) == {"MOONCAKE_OFFLOAD_ENABLED": "true", PATH: "/kv"}


@given(st.binary(max_size=200))
def test_any_environment_can_be_read(data: bytes) -> None:
    assert all(name.startswith("MOONCAKE_OFFLOAD_") for name in processes.parse_environment(data))


STATUS = b"Name:\tUid:\\n x\nUmask:\t0022\nUid:\t1\t2\t3\t65532\nGid:\t1\t2\t3\t0\nGroups:\t5 100 \nCapEff:\t%016x\n"
OVERRIDES, OTHERS = 1 << 1, (1 << 41) - 1 - (1 << 1)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (STATUS % 0, {"uid": 65532, "gid": 0, "groups": [5, 100]}),
        (STATUS % OTHERS, {"uid": 65532, "gid": 0, "groups": [5, 100]}),
        (STATUS % OVERRIDES, {}),
        (STATUS.replace(b"65532", b"0") % OVERRIDES, {"uid": 0, "gid": 0, "groups": [5, 100]}),
        (STATUS.replace(b"65532", b"0") % OTHERS, {}),  # as in a container without capabilities
        (STATUS.replace(b"5 100 ", b"") % 0, {"uid": 65532, "gid": 0, "groups": []}),
        (STATUS.replace(b"CapEff", b"CapBnd") % 0, {}),
        (b"", {}),
    ],
)
def test_what_a_process_runs_as(status: bytes, expected: dict[str, Any]) -> None:
    assert processes.parse_user(status) == expected


@given(st.binary(max_size=200))
def test_any_status_can_be_read(data: bytes) -> None:
    processes.parse_user(data)
    processes.parse_user((STATUS % 0).replace(b"65532", data))


def test_what_this_process_runs_as() -> None:
    found = processes.parse_user(Path("/proc/self/status").read_bytes())
    if found:
        assert (found["uid"], found["gid"], sorted(found["groups"])) == (
            os.geteuid(),
            os.getegid(),
            sorted(os.getgroups()),
        )


def fake_process(proc: Path, pid: int, path: str, root: Path) -> None:
    base = proc / str(pid)
    base.mkdir(parents=True)
    (base / "environ").write_bytes(f"{PATH}={path}".encode() if path else b"A=1")
    (base / "comm").write_text("mooncake_client\n")
    (base / "status").write_bytes(STATUS % 0)
    (base / "root").symlink_to(root)
    (base / "cwd").symlink_to(root)


def test_directories_are_compared_as_they_are_from_within(tmp_path: Path) -> None:
    proc, tier, inner = tmp_path / "proc", tmp_path / "kv", tmp_path / "inner"
    tier.mkdir()
    (inner / "data").mkdir(parents=True)
    fake_process(proc, 1, "", tmp_path)
    fake_process(proc, 2, "/kv", tmp_path)  # its root is another one
    fake_process(proc, 3, "/data", inner)
    fake_process(proc, 4, "kv", tmp_path)
    fake_process(proc, 5, str(tier), inner)  # says it is there, though nothing is
    (proc / "self").mkdir()
    found = {one.pid: one for one in processes.store_processes(str(proc))}
    assert set(found) == {2, 3, 4, 5}
    assert found[2].described == "process 2 (mooncake_client)"
    assert (found[2].uid, found[2].gid, found[2].groups) == (65532, 0, [5, 100])
    assert (found[2].owner, found[5].owner) == ([tier.stat().st_uid, tier.stat().st_gid], ())
    assert found[5].unknown == f"{tier}: No such file or directory"
    on = processes.on_directory(str(tier), tier.stat(), list(found.values()))
    assert sorted(one.pid for one in on) == [2, 4, 5]


def test_links_lead_where_they_lead_for_the_process(tmp_path: Path) -> None:
    proc, tier = tmp_path / "proc", tmp_path / "root/kv"
    tier.mkdir(parents=True)
    (tmp_path / "root/link").symlink_to("/")
    (tmp_path / "root/up").symlink_to("../../kv")
    for number, path in enumerate(("/link/kv", "/link/../link/kv", "/up", "kv", "./../root/kv", "link/kv", "/gone/kv")):
        fake_process(proc, number + 1, path, tmp_path / "root")
    found = {one.pid: one for one in processes.store_processes(str(proc))}
    there = [one.pid for one in found.values() if (one.device, one.inode) == (tier.stat().st_dev, tier.stat().st_ino)]
    assert sorted(there) == [1, 2, 3, 4, 5]
    assert "leads over symbolic links" in found[6].unknown and "No such file" in found[7].unknown
    assert len(processes.on_directory("/other", tier.parent.stat(), list(found.values()))) == 2


def test_what_cannot_be_told_counts_as_a_use(tmp_path: Path) -> None:
    unknown = processes.StoreProcess(7, "store", "/kv", unknown="Permission denied")
    assert processes.on_directory("/other", tmp_path.stat(), [unknown]) == [unknown]


def test_a_failed_look_counts_as_a_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any) -> Any:
        raise processes.NoAnswerError("no answer within 10 s")

    monkeypatch.setattr(processes, "answer_of", fail)
    assert "could not be determined: no answer within 10 s" in processes.why_busy("/kv", tmp_path.stat())

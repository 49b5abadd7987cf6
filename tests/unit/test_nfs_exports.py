# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands in a file of exports(5), and what of it the server has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stowage_core.errors import Refusal
from stowage_core.network_mounts import exports
from stowage_core.network_mounts.exports import Export, Live, parse_etab

FSID = exports.fsid("/mnt/nvme0/imagenet", "0a1b")
EXPORT = Export("vision", "imagenet", 0, "gpu-02", "192.0.2.12", "/mnt/nvme0/imagenet", True, FSID, "/mnt/nvme0")
ETAB = (
    b"/mnt/nvme0/imagenet\t192.0.2.12(ro,sync,wdelay,hide,nocrossmnt,secure,root_squash,no_all_squash,"
    b"no_subtree_check,secure_locks,acl,no_pnfs,mountpoint=/mnt/nvme0,fsid=" + FSID.encode() + b",anonuid=65534,"
    b"anongid=65534,sec=sys,ro,secure,root_squash,no_all_squash)\n"
    b"/srv/with\\040space\t*(rw,sync,no_subtree_check,sec=sys)\n"
)


def test_file() -> None:
    assert EXPORT.file == "/etc/exports.d/stowage-vision.imagenet-0@gpu-02.exports"
    header, comment, line = EXPORT.content.decode().splitlines()
    assert header == "# Written by Stowage. Local changes are lost."
    assert comment == "# drive vision/imagenet source 0 to gpu-02"
    assert line == (
        "/mnt/nvme0/imagenet 192.0.2.12(ro,sync,secure,no_subtree_check,sec=sys,root_squash,no_all_squash,"
        f"mountpoint=/mnt/nvme0,fsid={FSID})"
    )


@pytest.mark.parametrize(
    ("squash", "uid", "gid", "expected"),
    [
        ("root", None, None, ["root_squash", "no_all_squash"]),
        ("none", None, None, ["no_root_squash"]),
        ("all", 1000, 1001, ["root_squash", "all_squash", "anonuid=1000", "anongid=1001"]),
    ],
)
def test_squashing(squash: str, uid: int | None, gid: int | None, expected: list[str]) -> None:
    options = replace(EXPORT, squash=squash, anonymous_uid=uid, anonymous_gid=gid, mount_point="").options
    assert options == ["ro", "sync", "secure", "no_subtree_check", "sec=sys", *expected, f"fsid={FSID}"]


def test_names_that_need_escapes() -> None:
    path = '/mnt/a b\\c#d"e(f)'
    line = replace(EXPORT, path=path).content.decode().splitlines()[2]
    assert line.startswith("/mnt/a\\040b\\134c\\043d\\042e\\050f\\051 192.0.2.12(")
    assert EXPORT.argument == "192.0.2.12:/mnt/nvme0/imagenet"
    assert exports.argument("2001:db8::12", "/a") == "[2001:db8::12]:/a"


def test_what_the_server_has() -> None:
    live = parse_etab(ETAB)
    assert [(one.path, one.client) for one in live] == [
        ("/mnt/nvme0/imagenet", "192.0.2.12"),
        ("/srv/with space", "*"),
    ]
    assert exports.missing(EXPORT, exports.find(live, "192.0.2.12", "/mnt/nvme0/imagenet")) == []
    assert exports.find(live, "192.0.2.1", "/mnt/nvme0/imagenet") is None
    assert exports.missing(EXPORT, None) == EXPORT.options
    writable = replace(EXPORT, read_only=False)
    assert exports.missing(writable, live[0]) == ["rw"]


def test_lines_of_no_known_form_are_left_out() -> None:
    assert parse_etab(b"\n/srv\n/srv\tclient\n/srv\tclient(rw\n") == []
    assert parse_etab(b"/srv\t2001:db8::12(rw,sync)\n") == [Live("/srv", "2001:db8::12", frozenset({"rw", "sync"}))]


def test_fsid_is_of_the_directory_and_its_filesystem() -> None:
    assert FSID == exports.fsid("/mnt/nvme0/imagenet", "0a1b") != exports.fsid("/mnt/nvme0/imagenet", "0a1c")
    assert exports.fsid("/mnt/nvme0/coco", "0a1b") != FSID


@pytest.mark.parametrize("client", ["", "../gpu-02", "gpu 02", "gpu-02/x", "*", "gpu-02\n"])
def test_clients_that_name_no_file(client: str) -> None:
    with pytest.raises(Refusal, match="client: .* is not the name of a machine"):
        exports.file_path("vision", "imagenet", 0, client)


@pytest.mark.parametrize("address", ["", "*", "192.0.2.0/24", "gpu-02", "192.0.2.12 10.0.0.1", "@hosts"])
def test_an_export_is_to_one_address(address: str) -> None:
    with pytest.raises(Refusal, match="is no IP address; an export is to one address only"):
        exports.check_address(address, "address")


def test_addresses_in_their_shortest_form() -> None:
    assert exports.check_address("2001:0db8:0:0::12", "address") == "2001:db8::12"


def test_an_address_with_a_scope_id_is_refused_for_it_may_hold_anything() -> None:
    with pytest.raises(Refusal, match="has a scope id; give an address that is not link-local"):
        exports.check_address("fe80::1%x *(rw,no_root_squash)", "address")


def test_mount_points() -> None:
    assert exports.check_mount_point("/", "drive") == ""
    assert exports.check_mount_point("/mnt/nvme-0", "drive") == "/mnt/nvme-0"


@pytest.mark.parametrize(
    ("point", "wrong"),
    [("/mnt/a,b", ","), ("/mnt/a b", " "), ("/mnt/a(b", "("), ("/mnt/a\nb", "\\n"), ("/mnt/ü", "\\xc3")],
)
def test_a_mount_point_that_would_cost_everybody_their_exports(point: str, wrong: str) -> None:
    with pytest.raises(Refusal) as refused:
        exports.check_mount_point(point, "drive")
    assert f"has '{wrong}', which an option of exports(5) cannot hold; mount it elsewhere" in str(refused.value)


def test_a_path_that_exportfs_could_not_withdraw() -> None:
    assert exports.check_path("/mnt/a b,c(d)", "drive") == "/mnt/a b,c(d)"
    with pytest.raises(Refusal, match=r"has a backslash, which exportfs cannot withdraw; rename it"):
        exports.check_path("/mnt/a\\040b", "drive")


@pytest.mark.parametrize("squash", ["root", "all", "none"])
def test_our_files_say_what_is_exported(squash: str) -> None:
    one = replace(EXPORT, path="/mnt/nvme0/a b", read_only=False, squash=squash, anonymous_uid=7, anonymous_gid=8)
    other = replace(one, workspace="audio", drive="data-1", source=12, client="gpu-02.example.org")
    theirs = one.content.replace(b"# Written by Stowage", b"# Mine")
    contents = {
        one.file.rpartition("/")[2]: one.content,
        other.file.rpartition("/")[2]: other.content_with(one),
        "stowage-theirs.x-0@gpu-02.exports": theirs,
        "stowage-no.lines-0@gpu-02.exports": one.content.rpartition(b"/mnt/nvme0/a")[0],
        "stowage-odd.exports": one.content,
    }
    assert exports.read_files(contents) == [one, other]

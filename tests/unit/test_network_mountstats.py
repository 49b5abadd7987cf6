# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.network_mounts import mountstats
from stowage_core.network_mounts.mountstats import MountStats, Operation

LOCAL = b"""\
device rootfs mounted on / with fstype rootfs
device proc mounted on /proc with fstype proc
device /dev/vda1 mounted on / with fstype ext4
no device mounted on /odd with fstype tmpfs
"""
OPTIONS = b"rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=%s,timeo=600,retrans=2,sec=sys"
HEAD = b"""\
device %s mounted on %s with fstype nfs4 statvers=1.1
\topts:\t%s
\tage:\t372
\timpl_id:\tname='',domain='',date='0,0'
\tcaps:\tcaps=0x3ffbffdf,wtmult=512,dtsize=1048576,bsize=0,namlen=255
\tnfsv4:\tbm0=0xfdffbfff,bm1=0x40f9be3e,bm2=0x60803,acl=0x3,sessions,pnfs=not configured,lease_time=90,lease_expired=0
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t7 54 0 0 4 9 70 0 0 1 0 2 0 12 0 4 3 0 4 0 0 0 0 0 0 0 0 \n\
\tbytes:\t6000 70 800 9 1048576 4096 256 1 \n\
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
"""
TCP = b"\txprt:\ttcp 862 0 2 0 11 %d %d 0 117 0 2 0 0\n"
RDMA = b"\txprt:\trdma 0 0 1 0 3 220 219 0 219 0 12 40 0 1048576 4096 0 0 0 0 0 0 0 5 0 0 0\n"
UDP = b"\txprt:\tudp 900 1 10 10 0 10 0 2 0 0\n"
OPERATIONS = b"""\
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 1 1 0
\t        READ: 16 19 2 3200 1050000 7 830 900 1
\t       WRITE: 1 1 0 4300 120 0 3 4 0
\t      STATFS: 0 0 0 0 0 0 0 0 0

"""


def nfs(*transports: bytes, point: bytes = b"/mnt/a", proto: bytes = b"tcp", device: bytes = b"10.0.0.1:/srv") -> bytes:
    return HEAD % (device, point, OPTIONS % proto) + b"".join(transports) + OPERATIONS


def only(text: bytes) -> MountStats:
    (found,) = mountstats.parse(text)
    return found


def test_a_mount_over_tcp() -> None:
    found = only(LOCAL + nfs(TCP % (117, 117)) + b"device tmpfs mounted on /tmp with fstype tmpfs\n")
    assert (found.device, found.point, found.fstype, found.age_s) == ("10.0.0.1:/srv", "/mnt/a", "nfs4", 372)
    assert (found.option("vers"), found.option("proto"), found.option("hard"), found.option("soft")) == (
        "4.2",
        "tcp",
        "",
        "",
    )
    assert "hard" in found.options
    assert found.protocol == "tcp" and not found.is_rdma
    assert (found.bytes_read, found.bytes_written) == (1048576, 4096)
    assert found.operations[1] == Operation("READ", 16, 19, 2, 3200, 1050000, 7, 830, 900, 1)
    assert [one.name for one in found.operations] == ["NULL", "READ", "WRITE", "STATFS"]
    assert (found.operations_total, found.retransmissions, found.major_timeouts) == (18, 3, 2)
    assert (found.rtt_ms, found.bytes_received) == (834, 1050144)


@pytest.mark.parametrize(
    ("transports", "proto", "protocol", "proven"),
    [
        ([RDMA], b"rdma", "rdma", True),
        ([RDMA], b"rdma6", "rdma", True),
        ([RDMA, RDMA], b"rdma", "rdma", True),
        ([TCP % (1, 1)], b"rdma", "tcp", False),
        ([RDMA], b"tcp", "rdma", False),
        ([RDMA, TCP % (1, 1)], b"rdma", "", False),
        ([TCP % (117, 117), TCP % (90, 90), TCP % (0, 0)], b"tcp", "tcp", False),
        ([UDP], b"udp", "udp", False),
        ([], b"rdma", "", False),
        ([b"\txprt:\n"], b"rdma", "", False),
    ],
)
def test_what_it_is_mounted_over(transports: list[bytes], proto: bytes, protocol: str, proven: bool) -> None:
    found = only(nfs(*transports, proto=proto))
    assert (found.protocol, found.is_rdma) == (protocol, proven)
    assert len(found.protocols) == sum(1 for line in transports if len(line.split()) > 1)


def test_names_with_white_space() -> None:
    found = only(nfs(TCP % (1, 1), device=rb"[fd00::1]:/a\040b", point=rb"/mnt/x\040with\040fstype\011y\134\012z"))
    assert (found.device, found.point) == ("[fd00::1]:/a b", "/mnt/x with fstype\ty\\\nz")
    assert only(nfs(point=b"/mnt/\xff")).point == "/mnt/\udcff"


def test_mounts_over_each_other() -> None:
    found = mountstats.parse(nfs(device=b"a:/1") + nfs(device=b"b:/2") + nfs(device=b"c:/3", point=b"/mnt/b"))
    below = mountstats.at("/mnt/a", found)
    assert below is not None and below.device == "b:/2"
    assert mountstats.at("/mnt", found) is None
    leased = nfs(device=b"a:/1") + nfs(device=b"a:/1", point=b"/run/stowage/pins/run-1/1")
    assert [one.point for one in mountstats.parse(leased, {"/mnt/a"})] == ["/mnt/a"]


def test_older_and_newer_kernels() -> None:
    older = nfs(TCP % (1, 1)).replace(b" 7 830 900 1\n", b" 7 830 900\n").replace(b"1048576 4096 256 1 ", b"1 2 3 4")
    found = only(older)
    assert (found.operations[1].execute_ms, found.operations[1].errors) == (900, None)
    newer = nfs(b"\tnew:\tthing\n\tpage 5\n", TCP % (1, 1)).replace(b" 7 830 900 1\n", b" 7 830 900 1 55 x\n")
    assert only(newer).operations[1].errors == 1 and only(newer).protocol == "tcp"
    broken = nfs(TCP % (1, 1)).replace(b"16 19 2", b"16 -19 2")
    assert [one.name for one in only(broken).operations] == ["NULL", "WRITE", "STATFS"]


def test_a_mount_that_says_nothing() -> None:
    found = only(b"no device mounted on /mnt with fstype nfs statvers=1.1\n\tbytes:\t1 2 3\n\tage:\tlong\n")
    assert (found.device, found.age_s, found.bytes_read, found.bytes_written) == ("", None, None, None)
    assert (found.operations, found.protocol, found.options) == ((), "", ())
    assert mountstats.parse(b"") == []


def test_this_machine() -> None:
    assert isinstance(mountstats.read(), list)


@given(st.lists(st.one_of(st.binary(), st.sampled_from(nfs(TCP % (1, 1), RDMA).splitlines(keepends=True)))))
def test_whatever_comes(pieces: list[bytes]) -> None:
    for found in mountstats.parse(b"".join(pieces)):
        assert found.retransmissions >= 0 and found.operations_total >= 0
        assert isinstance(found.protocol, str) and isinstance(found.point, str)

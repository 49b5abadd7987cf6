# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The few Linux system calls that Stowage needs and that Python's standard library does not have.

Every function raises ``OSError`` with the kernel's errno. Numbers and structures are those of the kernel's
user-space headers; the system call numbers used here are the same on every architecture Linux supports.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import struct
import uuid

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442
_SYS_OPENAT2, _SYS_PIDFD_OPEN, _SYS_PIDFD_GETFD = 437, 434, 438
_SYS_KCMP = {"x86_64": 312, "aarch64": 272, "riscv64": 272, "ppc64le": 354, "s390x": 343}
_RESOLVE_BENEATH_ONE_MOUNT = 0x01 | 0x02 | 0x04 | 0x08  # NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH
_RESOLVE_IN_ROOT, _RESOLVE_NO_SYMLINKS = 0x02 | 0x10, 0x02 | 0x04  # each without magic links
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_SYMLINK_NOFOLLOW = 0x100
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_MNT_FORCE, _MNT_DETACH = 0x1, 0x2
_UMOUNT_NOFOLLOW = 8
_MS_PRIVATE = 1 << 18
_CLONE_NEWNS = 0x00020000
_KCMP_FILES, _KCMP_FS = 2, 3
_PR_SET_PDEATHSIG = 1
_STATX_ATTRIBUTES_AT, _STATX_ATTRIBUTES_UNCHANGEABLE = 8, 0x10 | 0x20  # immutable, append-only
_STATX_BTIME, _STATX_BTIME_AT, _STATX_BYTES = 0x800, 80, 256


DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How ``os.open`` opens a directory itself, and nothing that a symlink in its place leads to."""
NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
"""What ``open_beneath`` fails with where no directory of this mount is: nothing, a file, a symlink, another mount."""


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def _checked(result: int, *names: str | bytes) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), *names[:1])
    return result


def _text(name: bytes) -> ctypes.c_char_p:
    """Return *name* as the kernel takes it, which would end it at a NUL byte and act on another file."""
    if b"\0" in name:
        raise OSError(errno.EINVAL, "a name cannot hold a NUL byte", name)
    return ctypes.c_char_p(name)


def open_beneath(dir_fd: int, name: bytes, flags: int = os.O_RDONLY | os.O_DIRECTORY, mode: int = 0) -> int:
    """Open *name* below *dir_fd* without following any symlink or leaving the mount; close-on-exec.

    A component that is a symlink raises ELOOP (ENOTDIR as the last one, when a directory is asked for), one on
    another mount, or a way out of *dir_fd*, EXDEV. A btrfs subvolume is no other mount.

    :param mode: of a file that O_CREAT makes
    """
    return _openat2(dir_fd, name, _OpenHow(flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode, _RESOLVE_BENEATH_ONE_MOUNT))


def find_in_root(root_fd: int, name: bytes) -> int:
    """Return what *name* leads to for a process whose root directory is open at *root_fd*, as an O_PATH descriptor.

    Symbolic links lead where they lead for that process.
    """
    return _openat2(root_fd, name, _OpenHow(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT))


def find_without_links(dir_fd: int, name: bytes) -> int:
    """Return what *name* leads to from a directory, also through ``..``, as an O_PATH descriptor; ELOOP for a link."""
    return _openat2(dir_fd, name, _OpenHow(os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, 0, _RESOLVE_NO_SYMLINKS))


def _openat2(dir_fd: int, name: bytes, how: _OpenHow) -> int:
    path = _text(name)
    while True:
        result = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(dir_fd),
            path,
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        # EAGAIN: a rename somewhere raced with the walk; the kernel asks for another try.
        if result < 0 and ctypes.get_errno() in (4, 11):
            continue
        return _checked(int(result), name)


def rename_noreplace(src_dir_fd: int, src: bytes, dst_dir_fd: int, dst: bytes) -> None:
    """Rename, and fail with EEXIST when *dst* is there already."""
    _checked(
        _libc.renameat2(
            ctypes.c_int(src_dir_fd),
            _text(src),
            ctypes.c_int(dst_dir_fd),
            _text(dst),
            ctypes.c_uint(_RENAME_NOREPLACE),
        ),
        src,
    )


def rename_directory(src_dir_fd: int, src: bytes, dst_dir_fd: int, dst: bytes) -> None:
    """Rename a directory, also on NFS, and fail with EEXIST when *dst* is there already.

    On NFS, which has no such renaming, an empty directory is replaced.
    """
    try:
        rename_noreplace(src_dir_fd, src, dst_dir_fd, dst)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        try:
            os.rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        except OSError as other:
            if other.errno in (errno.ENOTEMPTY, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), dst) from other
            raise


def clone_mount(fd: int, name: str) -> int:
    """Return a copy of the mount of what is open at *fd*, without the mounts in it: open, and attached nowhere.

    :param name: what it is for, in an error
    """
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | _AT_EMPTY_PATH | os.O_CLOEXEC)
    arguments = (ctypes.c_int(fd), ctypes.c_char_p(b""), flags)
    return _checked(int(_libc.syscall(ctypes.c_long(_SYS_OPEN_TREE), *arguments)), os.fsencode(name))


def bind_mount(fd: int, target: str, read_only: bool = False, apart: bool = False) -> None:
    """Mount the directory or file open at *fd* on *target*, without set-id programs and devices.

    The mount has these properties before it is anywhere: mounting reaches the mount namespaces of services and
    containers at once, and a later change of its properties would not. Linux 5.12 is the first that can do this.

    :param apart: whether what is mounted later on the directory at its other places is not to appear at *target*, nor
        the other way round
    """
    place = os.fsencode(target)
    nowhere = ctypes.c_char_p(b"")
    tree = clone_mount(fd, target)
    try:
        attributes = _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV | (_MOUNT_ATTR_RDONLY if read_only else 0)
        wanted = struct.pack("=QQQQ", attributes, 0, _MS_PRIVATE if apart else 0, 0)
        result = _libc.syscall(
            ctypes.c_long(_SYS_MOUNT_SETATTR),
            ctypes.c_int(tree),
            nowhere,
            ctypes.c_uint(_AT_EMPTY_PATH),
            ctypes.c_char_p(wanted),
            ctypes.c_size_t(len(wanted)),
        )
        if result < 0 and ctypes.get_errno() == errno.ENOSYS:
            raise OSError(errno.ENOSYS, f"this needs Linux 5.12 or newer, and runs on {os.uname().release}", place)
        _checked(int(result), place)
        _checked(
            int(
                _libc.syscall(
                    ctypes.c_long(_SYS_MOVE_MOUNT),
                    ctypes.c_int(tree),
                    nowhere,
                    ctypes.c_int(_AT_FDCWD),
                    _text(place),
                    ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
                )
            ),
            place,
        )
    finally:
        os.close(tree)


def unmount(target: str) -> None:
    """Unmount *target* itself, never what a symlink there points to; EBUSY when it is in use."""
    place = os.fsencode(target)
    _checked(_libc.umount2(_text(place), ctypes.c_int(_UMOUNT_NOFOLLOW)), place)


def detach(target: str) -> None:
    """Unmount *target* itself although it is in use: whoever has something of it open keeps that."""
    place = os.fsencode(target)
    _checked(_libc.umount2(_text(place), ctypes.c_int(_MNT_DETACH | _UMOUNT_NOFOLLOW)), place)


def unmount_forced(target: str) -> None:
    """Unmount *target* itself although its server does not answer: what waits for the server gets an error.

    Whoever still has something of it open keeps that; nobody finds it by its name any more.
    """
    place = os.fsencode(target)
    # EBUSY as a rule: it was for the errors.
    if _libc.umount2(_text(place), ctypes.c_int(_MNT_FORCE | _UMOUNT_NOFOLLOW)) != 0:
        detach(target)


def change_owner(fd: int, uid: int, gid: int) -> None:
    """Change owner and group of what *fd* is, also of a symlink or FIFO opened with O_PATH; -1 leaves one as it is.

    The kernel takes set-id bits and capabilities away from a file whose owner changes.
    """
    owner = (ctypes.c_uint(number & 0xFFFFFFFF) for number in (uid, gid))
    _checked(_libc.fchownat(ctypes.c_int(fd), ctypes.c_char_p(b""), *owner, ctypes.c_int(_AT_EMPTY_PATH)))


def syncfs(fd: int) -> None:
    """Write back the filesystem that *fd* is on, so that freed space is counted."""
    _checked(_libc.syncfs(ctypes.c_int(fd)))


def end_with_parent() -> None:
    """Have this process killed when its parent ends; a parent that has ended already does not count."""
    _checked(_libc.prctl(ctypes.c_int(_PR_SET_PDEATHSIG), ctypes.c_ulong(signal.SIGKILL), *[ctypes.c_ulong(0)] * 3))


def enter_mount_namespace(fd: int) -> None:
    """Move the calling process, which must have one thread, into the mount namespace open at *fd*."""
    _checked(_libc.setns(ctypes.c_int(fd), ctypes.c_int(_CLONE_NEWNS)))


def mount_id(fd: int) -> int:
    """Return the id, as in mountinfo, of the mount that *fd* was opened through."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as info:
        for line in info:
            if line.startswith(b"mnt_id:"):
                return int(line.split()[1])
    raise OSError(f"/proc/self/fdinfo/{fd} has no mnt_id")


def birth_time(fd: int) -> int | None:
    """Return when what *fd* is was made, in nanoseconds since 1970, or None when its filesystem does not tell."""
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    arguments = (ctypes.c_int(fd), ctypes.c_char_p(b""), ctypes.c_int(_AT_EMPTY_PATH), ctypes.c_uint(_STATX_BTIME))
    _checked(_libc.statx(*arguments, answer))
    (mask,) = struct.unpack_from("=I", answer, 0)
    seconds, nanoseconds = struct.unpack_from("=qI", answer, _STATX_BTIME_AT)
    return seconds * 10**9 + nanoseconds if mask & _STATX_BTIME else None


def is_unchangeable(dir_fd: int, name: bytes) -> bool:
    """Return whether an entry of the directory open at *dir_fd*, no link's target, is immutable or append-only.

    False as well where the filesystem does not tell.
    """
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    arguments = (ctypes.c_int(dir_fd), _text(name), ctypes.c_int(_AT_SYMLINK_NOFOLLOW), ctypes.c_uint(0))
    _checked(_libc.statx(*arguments, answer), name)
    (attributes,) = struct.unpack_from("=Q", answer, _STATX_ATTRIBUTES_AT)
    return bool(attributes & _STATX_ATTRIBUTES_UNCHANGEABLE)


def same_files(pid: int, tid: int) -> bool:
    """Return whether two tasks share one table of open files."""
    return _kcmp(pid, tid, _KCMP_FILES) == 0


def same_fs(pid: int, tid: int) -> bool:
    """Return whether two tasks share their root and working directory."""
    return _kcmp(pid, tid, _KCMP_FS) == 0


def descriptor_of(pid: int, number: int) -> int:
    """Return what process *pid* has open at descriptor *number*, as a descriptor of this process; close-on-exec."""
    # Not every Python of 3.9 has pidfd_open: it depends on the headers it was built with.
    process = _checked(int(_libc.syscall(ctypes.c_long(_SYS_PIDFD_OPEN), ctypes.c_int(pid), ctypes.c_uint(0))))
    try:
        arguments = (ctypes.c_int(process), ctypes.c_int(number), ctypes.c_uint(0))
        return _checked(int(_libc.syscall(ctypes.c_long(_SYS_PIDFD_GETFD), *arguments)))
    finally:
        os.close(process)


def _kcmp(pid: int, tid: int, kind: int) -> int:
    number = _SYS_KCMP.get(os.uname().machine)
    if number is None:
        raise OSError(f"kcmp: unknown system call number on {os.uname().machine}")
    return _checked(int(_libc.syscall(*(ctypes.c_long(value) for value in (number, pid, tid, kind, 0, 0)))))


_FS_IOC_GETFSUUID = 0x80111500  # any filesystem, Linux 6.9 and newer: one byte length, 16 bytes
_EXT4_IOC_GETFSUUID = 0x8008662C  # Linux 6.0: u32 length, u32 flags, 16 bytes
_XFS_IOC_FSGEOMETRY_V1 = 0x80705864  # 112 bytes, the UUID at 64
_BTRFS_IOC_FS_INFO = 0x8400941F  # 1024 bytes, the UUID at 16
_LINKS_BY_UUID = "/dev/disk/by-uuid"
_uuids_by_fsid: dict[int, str] = {}


def filesystem_uuid(fd: int) -> str | None:
    """Return the UUID of the filesystem that *fd* is on, or None when nothing tells.

    It is read from the mounted filesystem itself. ext4 does not tell it before Linux 6.0, and is known by udev's links.
    """
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:
        try:
            readable = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None  # a network filesystem, or a user's own, that keeps root out
        try:
            return filesystem_uuid(readable)
        finally:
            os.close(readable)
    for request, buffer, start in (
        (_FS_IOC_GETFSUUID, bytes(17), 1),
        (_EXT4_IOC_GETFSUUID, struct.pack("=II16x", 16, 0), 8),
        (_XFS_IOC_FSGEOMETRY_V1, bytes(112), 64),
        (_BTRFS_IOC_FS_INFO, bytes(1024), 16),
    ):
        try:
            answer = fcntl.ioctl(fd, request, buffer)
        except OSError:
            continue  # not this filesystem's request: the next one
        value = answer[start : start + 16]
        if any(value):
            return str(uuid.UUID(bytes=value))
    # Asking a network filesystem for its figures would wait for its servers.
    return _linked_uuid(os.fstatvfs(fd).f_fsid) if is_on_block_device(fd) else None


def is_on_block_device(fd: int) -> bool:
    """Return whether *fd* is on a filesystem that has one block device to itself: ext4 and XFS, but not btrfs."""
    return os.major(os.fstat(fd).st_dev) != 0


def _linked_uuid(fsid: int) -> str | None:
    """Return the UUID among the names of udev's links that the mounted filesystem confirms.

    Every ext4 tells 64 bits of it, both halves combined: a link that is stale or of another disk is not taken.
    """
    if fsid not in _uuids_by_fsid:
        try:
            names = os.listdir(_LINKS_BY_UUID)
        except OSError:
            return None  # no udev here, as in a container
        for name in names:
            try:
                linked = uuid.UUID(name)
            except ValueError:
                continue  # of FAT or NTFS
            first, second = struct.unpack("<QQ", linked.bytes)
            _uuids_by_fsid[first ^ second] = str(linked)
    return _uuids_by_fsid.get(fsid)


_BTRFS_IOC_GET_SUBVOL_INFO = 0x81F8943C  # 504 bytes: the number at 0, the UUID at 296


def subvolume(fd: int) -> str | None:
    """Return number and UUID of the btrfs subvolume that *fd* is in, or None on any other filesystem.

    A snapshot has the filesystem's UUID and the inode numbers of what it was made of, but not these.
    """
    try:
        answer = fcntl.ioctl(fd, _BTRFS_IOC_GET_SUBVOL_INFO, bytes(504))
    except OSError:
        return None
    (number,) = struct.unpack_from("=Q", answer)
    return f"{number} {uuid.UUID(bytes=answer[296:312])}"

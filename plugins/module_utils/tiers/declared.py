# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-cache backends and their tiers as they are declared: every field and rule of GPUStack's local disk tier.

A backend has member groups, which are known by their position. A group may have one tier: a directory on each of its
hosts. Nothing here looks at a host.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..drives.declared import Problems, check_name
from ..errors import Refusal, quoted
from ..paths import check_path, overlap, relation
from ..sizes import parse_quantity
from .environment import BUCKET_BYTES, BUCKET_KEYS, check_extra_argument, check_extra_variable
from .fields import Fields, plain, shown

MOONCAKE = "mooncake"
FILES = "files"
STORES = (MOONCAKE, FILES)
POLICIES = ("FIFO", "LRU")

DEFAULT_UID = 65532
DEFAULT_GID = 0
"""The user of the published store image, where neither the inventory nor an image names another one."""
DEFAULT_MODE = "0750"

LONGEST_GRACE_PERIOD = 3600
"""The store's own endpoint answers a longer one with an error, so that every shutdown would fail."""

_DEVICES = "/dev/infiniband"
_WHY_APART = "members in one directory destroy each other's buckets, and deletion of one would empty the other"
_UNREADABLE = -1
"""A size that is refused: it is declared, and so no other rule misses it."""
_LARGEST = 2**63 - 1
_MODE = re.compile(r"0?[0-7]{3}", re.ASCII)
_ACCOUNT = re.compile(r"[0-9]+|[a-z_][a-z0-9_-]*\$?", re.ASCII)

_BACKEND_FIELDS = ("name", "members", "leader_extra_args", "scale_in")
_GROUP_FIELDS = (
    "hosts",
    "capacity_per_member",
    "image",
    "owner",
    "group",
    "mode",
    "store",
    "extra_env",
    "local_disks",
)
_GROUP_HINTS = {
    "nodeSelector": "name inventory hosts in hosts",
    "node_selector": "name inventory hosts in hosts",
    "medium": "leave it out: a tier is the same under every medium",
    "localDisk": "did you mean localDisks? It is a list of one entry",
    "local_disk": "did you mean local_disks? It is a list of one entry",
}
_TIER_FIELDS = ("path", "capacity", "key_limit", "eviction", "clean_after_delete")
_EVICTION_FIELDS = ("enabled", "policy", "watermark")
_WATERMARK_FIELDS = ("high", "low")


@dataclass(frozen=True)
class Watermark:
    """When eviction begins and ends, in percent of the tier's capacity."""

    high: int
    low: int


@dataclass(frozen=True)
class Eviction:
    """What is done when a tier is full.

    :param enabled: drop what is there and go on writing; otherwise writing stops
    :param policy: ``FIFO`` or ``LRU``; empty for the store's own
    """

    enabled: bool = True
    policy: str = ""
    watermark: Watermark | None = None


@dataclass(frozen=True)
class Tier:
    """A directory on each host of a member group.

    :param capacity: bytes; 0 for the store's own ceiling
    :param key_limit: 0 for the store's own ceiling; files, where the store keeps whole files
    :param eviction: None for what the store does by itself
    """

    path: str
    capacity: int = 0
    key_limit: int = 0
    eviction: Eviction | None = None
    clean_after_delete: bool = False


@dataclass(frozen=True)
class MemberGroup:
    """Members of a backend that are alike, one on each host.

    :param hosts: names of the inventory; None for every host
    :param capacity_per_member: bytes of a member's memory segment; 0 when not declared
    :param owner: a user's name or number; empty for the image's user, see DEFAULT_UID
    :param group: likewise, see DEFAULT_GID
    :param store: MOONCAKE, which evicts by itself, or FILES: whole files, which the daemon evicts
    """

    hosts: tuple[str, ...] | None = None
    capacity_per_member: int = 0
    image: str = ""
    owner: str = ""
    group: str = ""
    mode: str = DEFAULT_MODE
    store: str = MOONCAKE
    extra_env: Mapping[str, str] = field(default_factory=dict)
    tier: Tier | None = None

    def is_on(self, host: str) -> bool:
        """Return whether the group has a member on a host of the inventory."""
        return self.hosts is None or host in self.hosts

    @property
    def is_offloading(self) -> bool:
        """Whether members of the Mooncake store write to a tier."""
        return self.tier is not None and self.store == MOONCAKE


@dataclass(frozen=True)
class Backend:
    """A backend with its member groups by position.

    :param grace_period: seconds for which a leaving member's process stays after it has signed off its tier
    :param is_declared: false of one that a host remembers although the list does not have it any more
    """

    name: str
    members: tuple[MemberGroup, ...]
    leader_extra_args: tuple[str, ...] = ()
    grace_period: int = 0
    is_declared: bool = True

    def tiers(self, host: str | None = None) -> Iterator[tuple[int, MemberGroup, Tier]]:
        """Yield position, group and tier of every group that has one; with *host*, of those that are on it."""
        for position, group in enumerate(self.members):
            if group.tier is not None and (host is None or group.is_on(host)):
                yield position, group, group.tier

    def to_json(self) -> dict[str, Any]:
        """Return the backend as a record has it, in the words of the inventory with defaults filled in."""
        return {
            "name": self.name,
            "members": [_group_to_json(group) for group in self.members],
            "leader_extra_args": list(self.leader_extra_args),
            "scale_in": {"grace_period_seconds": self.grace_period},
            **({} if self.is_declared else {"declared": False}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Backend:
        """Return the backend that ``to_json`` made *value* of; nothing is checked again."""
        return cls(
            value["name"],
            tuple(_group_from_json(group) for group in value["members"]),
            tuple(value["leader_extra_args"]),
            value["scale_in"]["grace_period_seconds"],
            value.get("declared", True),
        )


def tier_name(backend: str, position: int) -> str:
    """Return the name under which a host claims and records a tier: ``chat/0``."""
    return f"{backend}/{position}"


def read_backends(value: Any, name: str = "backends") -> list[Backend]:
    """Return the complete list of backends, checked as far as it can be without a record or a host.

    Left to do with the record: ``frozen.check_unchanged`` and ``check_floors``.

    :param value: the list, with fields in snake case or camel case; fields that are null count as left out
    :param name: what the list is called in messages about entries that have no name
    :raises Problems: everything that is wrong with the list, a line each
    """
    if not isinstance(value, list):
        raise Problems([f"{name}: must be a list"])
    problems: list[str] = []
    backends = [_backend(item, f"{name}[{index}]", problems) for index, item in enumerate(value)]
    names = [backend.name for backend in backends if backend.name]
    twice = sorted({each for each in names if names.count(each) > 1})
    problems += [f"{each}: is there twice; a backend is one entry" for each in twice]
    if not problems:
        problems += _sharing(backends)
    if problems:
        raise Problems(problems)
    return backends


def check_floors(new: Backend, old: Backend | None = None) -> None:
    """Refuse what is too small for one bucket, of values that are new or differ from the recorded backend's.

    A value that was recorded by an earlier release stays as it is until it is changed.

    :raises Problems: every value that is too small, a line each
    """
    problems = []
    for position, group, tier in new.tiers():
        if group.store != MOONCAKE:
            continue
        was = old.members[position] if old is not None and position < len(old.members) else None
        if was is not None and was.tier is None:
            was = None
        where = f"{new.name}: members[{position}]"
        bytes_needed = f"a bucket has {BUCKET_BYTES} bytes (16Mi)"
        if group.capacity_per_member < BUCKET_BYTES and (
            was is None or was.capacity_per_member != group.capacity_per_member
        ):
            rule = (
                f"{group.capacity_per_member} bytes cannot hold one bucket, which stays in memory until it is complete"
            )
            problems.append(f"{where}.capacity_per_member: {rule}; {bytes_needed}")
        was_tier = was.tier if was is not None else None
        if 0 < tier.capacity < BUCKET_BYTES and (was_tier is None or was_tier.capacity != tier.capacity):
            rule = f"{tier.capacity} bytes cannot hold one bucket, and the store would write nothing and say nothing"
            problems.append(f"{where}.local_disks[0].capacity: {rule}; {bytes_needed}, 0 is no limit")
        if 0 < tier.key_limit < BUCKET_KEYS and (was_tier is None or was_tier.key_limit != tier.key_limit):
            rule = f"{tier.key_limit} keys cannot hold one bucket, and the store would write nothing and say nothing"
            problems.append(f"{where}.local_disks[0].key_limit: {rule}; a bucket has {BUCKET_KEYS} keys, 0 is no limit")
    if problems:
        raise Problems(problems)


def _backend(value: Any, where: str, problems: list[str]) -> Backend:
    name = ""
    if isinstance(value, Mapping):
        try:
            name = check_name(value.get("name"), f"{where}.name")
        except Refusal as error:
            problems.append(str(error) if value.get("name") is not None else f"{where}.name: required")
    fields = Fields(value, f"{name}: " if name else f"{where}.", problems, _BACKEND_FIELDS)
    members = tuple(
        _group(item, fields.path(f"members[{index}]"), problems) for index, item in enumerate(fields.items("members"))
    )
    if fields.is_mapping and not members and fields.value("members") in (None, []):
        fields.add("members", "required; at least one group")
    arguments = fields.texts("leader_extra_args")
    for index, argument in enumerate(arguments):
        try:
            check_extra_argument(argument, fields.path(f"leader_extra_args[{index}]"))
        except Refusal as error:
            problems.append(str(error))
    grace = fields.inner("scale_in", ("grace_period_seconds",)).integer(
        "grace_period_seconds", 0, 0, LONGEST_GRACE_PERIOD
    )
    return Backend(name, members, tuple(arguments), grace)


def _group(value: Any, where: str, problems: list[str]) -> MemberGroup:
    fields = Fields(value, f"{where}.", problems, _GROUP_FIELDS, _GROUP_HINTS)
    store = fields.choice("store", STORES, MOONCAKE)
    disks = fields.items("local_disks")
    if len(disks) > 1:
        rule = f"has {len(disks)} entries; one at most: a backend reports one pair of figures for its tier"
        fields.add("local_disks", f"{rule}, so that a second one could not be told from it")
    tiers = [_tier(item, fields.path(f"local_disks[{index}]"), store, problems) for index, item in enumerate(disks)]
    group = MemberGroup(
        tuple(fields.texts("hosts")) if fields.value("hosts") is not None else None,
        fields.checked("capacity_per_member", _quantity, 0),
        fields.text("image"),
        _account(fields, "owner"),
        _account(fields, "group"),
        _mode(fields),
        store,
        _extra_environment(fields),
        tiers[0] if tiers else None,
    )
    if store == FILES:
        _check_files(fields, group)
    return group


def _check_files(fields: Fields, group: MemberGroup) -> None:
    """Refuse what means nothing for a directory of whole files, of which only the daemon knows."""
    if fields.is_mapping and not fields.items("local_disks"):
        fields.add("local_disks", "required with store: files; the directory is all that there is of such a group")
    for name in ("capacity_per_member", "extra_env"):
        if fields.value(name):
            fields.add(name, "is for a process of the store, and with store: files there is none; leave it out")


def _account(fields: Fields, name: str) -> str:
    account = fields.text(name)
    if account and not _ACCOUNT.fullmatch(account):
        fields.add(name, f"{shown(account)} is neither a name nor a number")
        return ""
    return account


def _mode(fields: Fields) -> str:
    value = fields.value("mode")
    if value is None:
        return DEFAULT_MODE
    if not isinstance(value, str) or not _MODE.fullmatch(value):
        fields.add("mode", f'{shown(value)} is not a mode; write three octal digits in quotes, as "{DEFAULT_MODE}"')
        return DEFAULT_MODE
    return value.zfill(4)


def _extra_environment(fields: Fields) -> dict[str, str]:
    value = fields.value("extra_env")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        fields.add("extra_env", f"{shown(value)} must be a dictionary of names and values")
        return {}
    for key, text in value.items():
        where = f"{fields.path('extra_env')}.{plain(key)}"
        try:
            check_extra_variable(key, where)
        except Refusal as error:
            fields.problems.append(str(error))
        if not isinstance(text, str) or not text.isprintable():
            fields.problems.append(f"{where}: must be a text without control characters; put quotes around numbers")
    return {str(key): str(text) for key, text in value.items()}


def _tier(value: Any, where: str, store: str, problems: list[str]) -> Tier:
    fields = Fields(value, f"{where}.", problems, _TIER_FIELDS)
    path = fields.checked("path", _path, "") if fields.is_mapping else ""
    capacity = fields.checked("capacity", _quantity, _UNREADABLE)
    key_limit = fields.integer("key_limit", 0, 0, _LARGEST)
    eviction = None
    if fields.value("eviction") is not None:
        eviction = _eviction(fields, store, capacity != 0, bool(fields.value("key_limit")))
    return Tier(path, capacity, key_limit, eviction, fields.boolean("clean_after_delete", False))


def _eviction(tier: Fields, store: str, has_capacity: bool, has_key_limit: bool) -> Eviction:
    fields = tier.inner("eviction", _EVICTION_FIELDS)
    enabled = fields.boolean("enabled", True)
    policy = fields.choice(
        "policy", POLICIES, "", "the store takes a policy that it does not know for no eviction at all"
    )
    watermark = None
    if fields.value("watermark") is not None:
        watermark = _watermark(fields.inner("watermark", _WATERMARK_FIELDS))
    if not enabled and fields.value("policy") is not None:
        fields.add("policy", "there is no order in which nothing leaves; with enabled: false leave it out")
    if not enabled and watermark is not None:
        fields.add("watermark", "there is nothing that the marks begin and end; with enabled: false leave it out")
    if store == FILES:
        if not enabled:
            rule = "nobody keeps the writers of whole files from filling the directory; leave eviction out"
            fields.add("enabled", f"false is for a store that stops writing, and with store: files {rule}")
        elif not has_capacity and not has_key_limit:
            tier.add("eviction", "the daemon evicts by capacity or key_limit, and neither is declared; declare one")
    elif watermark is not None and not has_capacity:
        rule = "the marks are percentages of capacity, which is not declared: the store's own, 0, switches eviction off"
        fields.add("watermark", f"{rule}; declare capacity, or leave the watermark out")
    return Eviction(enabled, policy, watermark)


def _watermark(fields: Fields) -> Watermark:
    for name in _WATERMARK_FIELDS:
        if fields.is_mapping and fields.value(name) is None:
            fields.add(name, "required; a watermark is a pair")
    watermark = Watermark(*(fields.integer(name, default, 1, 100) for name, default in (("high", 100), ("low", 1))))
    if watermark.low >= watermark.high:
        rule = f"{watermark.low} must be below high, {watermark.high}: every write past the mark would evict"
        fields.add("low", f"{rule}, and the store refuses the pair when it starts, in its own log")
    return watermark


def _path(value: Any, name: str) -> str:
    if isinstance(value, str) and value != value.strip():
        rule = f"{quoted(value)} may not begin or end with whitespace"
        raise Refusal(name, f"{rule}: it is taken as written, which is another directory than the one that is read")
    if isinstance(value, str) and value and not value.strip("/"):
        rule = "must not be the root directory: the host's whole filesystem would be the store's"
        raise Refusal(name, rule, "name a directory below it")
    if isinstance(value, str) and ".." in value.split("/"):
        rule = f"{quoted(value)} may not contain a '..' component"
        raise Refusal(name, f"{rule}: the store refuses such a path before it looks whether there is anything")
    path = check_path(value, name)
    if overlap(path, _DEVICES):
        rule = f"{quoted(path)} {relation(path, _DEVICES)} {_DEVICES}, where a container is given its network devices"
        raise Refusal(name, f"{rule}: one would hide the other", "name another directory")
    return path


def _quantity(value: Any, name: str) -> int:
    return 0 if value is None else parse_quantity(value, name)


def _sharing(backends: Sequence[Backend]) -> Iterator[str]:
    """Yield what is wrong with tiers that are on one host and not apart there."""
    tiers = [(backend.name, *entry) for backend in backends for entry in backend.tiers()]
    for one, other in itertools.combinations(tiers, 2):
        how = relation(other[3].path, one[3].path)
        if how and share_a_host(one[2], other[2]):
            rule = f"{quoted(other[3].path)} {how} the tier of {one[0]}: members[{one[1]}] on the same hosts"
            yield f"{other[0]}: members[{other[1]}].local_disks[0].path: {rule}; {_WHY_APART}"


def share_a_host(one: MemberGroup, other: MemberGroup) -> bool:
    """Return whether two groups have members on one host."""
    if one.hosts is None or other.hosts is None:
        return one.hosts != () and other.hosts != ()
    return not set(one.hosts).isdisjoint(other.hosts)


def _group_to_json(group: MemberGroup) -> dict[str, Any]:
    return {
        "hosts": None if group.hosts is None else list(group.hosts),
        "capacity_per_member": group.capacity_per_member,
        "image": group.image,
        "owner": group.owner,
        "group": group.group,
        "mode": group.mode,
        "store": group.store,
        "extra_env": dict(group.extra_env),
        "local_disks": [] if group.tier is None else [asdict(group.tier)],
    }


def _group_from_json(value: Mapping[str, Any]) -> MemberGroup:
    fields = {key: each for key, each in value.items() if key != "local_disks"}
    fields["hosts"] = None if value["hosts"] is None else tuple(value["hosts"])
    return MemberGroup(**fields, tier=_tier_from_json(value["local_disks"][0]) if value["local_disks"] else None)


def _tier_from_json(value: Mapping[str, Any]) -> Tier:
    eviction = value["eviction"]
    if eviction is not None:
        marks = eviction["watermark"]
        eviction = Eviction(eviction["enabled"], eviction["policy"], None if marks is None else Watermark(**marks))
    return Tier(**{**value, "eviction": eviction})

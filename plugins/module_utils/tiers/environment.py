# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the Mooncake store is told of a tier: its members by their environment, its leader by its arguments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..errors import Refusal, quoted

if TYPE_CHECKING:
    from .declared import Backend, Tier

BUCKET_BYTES = 16 * 1024**2
BUCKET_KEYS = 64
"""A bucket is written when it is full by one of the two; the store's own, 256 MB and 500 keys, fill too rarely."""

PREFIX = "MOONCAKE_OFFLOAD_"
"""What the names of all of the store's settings of a tier begin with."""
ENABLED = PREFIX + "ENABLED"
PATH = PREFIX + "FILE_STORAGE_PATH"
BUCKET_SIZE_LIMIT = PREFIX + "BUCKET_SIZE_LIMIT_BYTES"
BUCKET_KEYS_LIMIT = PREFIX + "BUCKET_KEYS_LIMIT"
TOTAL_SIZE_LIMIT = PREFIX + "TOTAL_SIZE_LIMIT_BYTES"
BUCKET_TOTAL_SIZE = PREFIX + "BUCKET_MAX_TOTAL_SIZE"
TOTAL_KEYS_LIMIT = PREFIX + "TOTAL_KEYS_LIMIT"
POLICY = PREFIX + "BUCKET_EVICTION_POLICY"
WATERMARK_EVICTION = PREFIX + "ENABLE_DISK_WATERMARK_EVICTION"
HIGH_RATIO = PREFIX + "DISK_EVICTION_HIGH_WATERMARK_RATIO"
LOW_RATIO = PREFIX + "DISK_EVICTION_LOW_WATERMARK_RATIO"

RENDERED = (
    ENABLED,
    PATH,
    BUCKET_SIZE_LIMIT,
    BUCKET_KEYS_LIMIT,
    TOTAL_SIZE_LIMIT,
    BUCKET_TOTAL_SIZE,
    TOTAL_KEYS_LIMIT,
    POLICY,
    WATERMARK_EVICTION,
    HIGH_RATIO,
    LOW_RATIO,
)
"""Every name that a tier may render, in the order that it renders them."""

_OLDER_NAMES = {name.replace("_OFFLOAD_", "_", 1): name for name in (BUCKET_TOTAL_SIZE, POLICY, HIGH_RATIO, LOW_RATIO)}
"""Names that the store still reads where the newer one is not set."""

LEADER_FLAGS = ("enable_offload", "offload_on_evict")
_READING_FLAGS = ("flagfile", "fromenv", "tryfromenv")
"""Flags by which a program takes any flag from somewhere else."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def member_environment(tier: Tier) -> dict[str, str]:
    """Return the variables of a store process that is a member of a group with this tier, without ``extra_env``.

    Ratios have two decimals and policies are lower case: what the store cannot parse it takes for its default, or for
    no eviction at all, without a word. Nothing is rendered of what is not declared.
    """
    rendered = {
        ENABLED: "true",
        PATH: tier.path,
        BUCKET_SIZE_LIMIT: str(BUCKET_BYTES),
        BUCKET_KEYS_LIMIT: str(BUCKET_KEYS),
    }
    if tier.capacity:
        # What the store reports and refuses writes at, and what its marks are a share of: two settings of one value.
        rendered[TOTAL_SIZE_LIMIT] = str(tier.capacity)
        rendered[BUCKET_TOTAL_SIZE] = str(tier.capacity)
    if tier.key_limit:
        rendered[TOTAL_KEYS_LIMIT] = str(tier.key_limit)
    eviction = tier.eviction
    if eviction is None:
        return rendered
    if not eviction.enabled:
        # The policy acts when a bucket is written, the watermark in between: both are off only together.
        rendered[POLICY] = "none"
        rendered[WATERMARK_EVICTION] = "false"
        return rendered
    if eviction.policy:
        rendered[POLICY] = eviction.policy.lower()
    if eviction.watermark is not None:
        rendered[HIGH_RATIO] = _ratio(eviction.watermark.high)
        rendered[LOW_RATIO] = _ratio(eviction.watermark.low)
    return rendered


def leader_arguments(backend: Backend) -> list[str]:
    """Return what the backend's leader is started with: both flags when a group has a tier, then its own arguments."""
    flags = [f"-{flag}=true" for flag in LEADER_FLAGS] if any(group.is_offloading for group in backend.members) else []
    return [*flags, *backend.leader_extra_args]


def check_extra_variable(name: Any, where: str) -> None:
    """Refuse a name in ``extra_env`` that is no variable, or that a tier renders."""
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
        raise Refusal(where, "is not a variable's name", "it has letters, digits and _, and no digit at its beginning")
    if name in RENDERED:
        rule = "is rendered from local_disks, and whichever of two variables of one name wins is up to the runtime"
        is_fixed = name in (BUCKET_SIZE_LIMIT, BUCKET_KEYS_LIMIT)
        raise Refusal(where, rule, "leave it out" if is_fixed else "say it there")
    if name in _OLDER_NAMES:
        rule = f"is the store's older name of {_OLDER_NAMES[name]}, which is rendered from local_disks"
        raise Refusal(where, rule, "say it there")


def check_extra_argument(argument: str, where: str) -> None:
    """Refuse an extra argument of the leader that sets one of the two flags, however it is spelt, or that may."""
    if argument != argument.strip():
        raise Refusal(where, f"{quoted(argument)} may not begin or end with whitespace", "leave it out")
    flag = argument.lstrip("-").partition("=")[0].rstrip().replace("-", "_")
    if flag in _READING_FLAGS:
        rule = f"{quoted(argument)} takes flags from elsewhere, perhaps those that follow from the members' local_disks"
        raise Refusal(where, rule, "write them here, one by one")
    for known in LEADER_FLAGS:
        if flag in (known, "no" + known):
            rule = f"{quoted(argument)} sets {known}, which follows from the members' local_disks"
            raise Refusal(where, f"{rule}, so that leader and members agree", "leave it out")


def _ratio(percent: int) -> str:
    return f"{percent // 100}.{percent % 100:02d}"

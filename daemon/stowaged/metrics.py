# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The metrics of each state section, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric

from stowage_core.errors import printable
from stowage_core.gate.judgement import REASONS as HOLDS
from stowage_core.network_mounts.records import STATES

from .eviction_decision import BLOCKED, FAILED, SHORT
from .version import VERSION

Section = Mapping[str, Any]

ENGINES = ("watch", "scan")
REASONS = ("full", "limit", "deleted", "expired")
"""Why copies are removed: the disk is nearly full, the data location is over its limit, the drive was deleted, nobody
used it for as long as its drive says."""


class _Collected:
    """What generate_latest asks of a registry."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def render(name: str, section: Section, left_out: Collection[str] = ()) -> bytes:
    """Return the metrics of one section.

    :param left_out: ``copies``, ``users``, or both: of these no single one has series
    """
    if name in left_out:
        return b""
    if name == "accounts" and "users" in left_out:
        section = {**section, "users": {}}
    return bytes(generate_latest(_Collected(_FAMILIES[name](section))))


def _gauges(
    items: Iterable[Mapping[str, Any]], labels: Sequence[str], wanted: Sequence[tuple[str, str, str]]
) -> list[Metric]:
    """Return a gauge for each (metric, key, help); an item that has no figure under the key gets no series."""
    items = list(items)
    families: list[Metric] = []
    for metric, key, text in wanted:
        family = GaugeMetricFamily(metric, text, labels=labels)
        for item in items:
            value = item.get(key)
            if value is not None:
                family.add_metric(_labels(item, labels), float(value))
        families.append(family)
    return families


def _labels(item: Mapping[str, Any], labels: Sequence[str]) -> list[str]:
    return [printable(str(item[label])) for label in labels]


def _gauge(metric: str, text: str, value: Any) -> Metric:
    return GaugeMetricFamily(metric, text, value=float(value))


def _gate(section: Section) -> list[Metric]:
    holds = section["holds"]
    reasons = [one["reason"] for one in holds]
    family = GaugeMetricFamily("stowage_gate_hold", "How many reasons hold jobs, of all or of one.", labels=("reason",))
    for reason in HOLDS:
        family.add_metric([reason], reasons.count(reason))
    is_open = all(one["user"] or one["team"] for one in holds)
    return [_gauge("stowage_gate_open", "1 while this host may take new jobs.", is_open), family]


def _filesystems(section: Section) -> list[Metric]:
    return _gauges(
        section["filesystems"],
        ("device", "fstype", "mountpoint"),
        (
            ("stowage_filesystem_size_bytes", "size", "Size of a filesystem that holds something of Stowage's."),
            ("stowage_filesystem_free_bytes", "free", "Free space, including what is kept for root."),
            ("stowage_filesystem_avail_bytes", "avail", "Free space that users other than root can have."),
            ("stowage_filesystem_files", "files", "Inodes; 0 where the filesystem makes them as it needs them."),
            ("stowage_filesystem_files_free", "files_free", "Free inodes."),
        ),
    )


_MEASURED_LABELS = ("device", "fstype", "mountpoint")


def _measuring(section: Section) -> list[Metric]:
    filesystems = section["filesystems"]
    text = "1 for the engine that measures a filesystem, with the cause why it is not watched."
    engine = GaugeMetricFamily("stowage_measuring_engine", text, labels=(*_MEASURED_LABELS, "engine", "cause"))
    text = "How often watching a filesystem has failed since the daemon was started."
    failures = CounterMetricFamily("stowage_measuring_failures", text, labels=_MEASURED_LABELS)
    text = "How often all that watching a filesystem knew was lost, and was listed in full again."
    lost = CounterMetricFamily("stowage_measuring_lost", text, labels=_MEASURED_LABELS)
    for one in filesystems:
        labels = _labels(one, _MEASURED_LABELS)
        for each in ENGINES:
            is_it = one["engine"] == each
            engine.add_metric([*labels, each, one["cause"] if is_it else ""], is_it)
        failures.add_metric(labels, one["failures"])
        lost.add_metric(labels, one["lost"])
    gauges = _gauges(
        filesystems,
        _MEASURED_LABELS,
        (
            ("stowage_measuring_trees", "trees", "Trees that are known by watching their filesystem."),
            ("stowage_measuring_directories", "directories", "Directories in these."),
            (
                "stowage_measuring_unsteady_directories",
                "unsteady",
                "Those of them that are looked at each time, as what they hold may change without a word.",
            ),
            (
                "stowage_measuring_listed_timestamp_seconds",
                "listed",
                "When the tree of these that was listed longest ago was listed in full.",
            ),
        ),
    )
    return [engine, *gauges, failures, lost]


def _locations(section: Section) -> list[Metric]:
    locations = [{**one, "credentials": _count(one.get("credentials"))} for one in section["locations"]]
    return _gauges(
        locations,
        ("location",),
        (
            ("stowage_location_bytes", "bytes", "Size of the files of a location at the last complete measurement."),
            ("stowage_location_files", "files", "Files of a location at the last complete measurement."),
            ("stowage_location_available", "available", "1 while the location is there and on its own filesystem."),
            ("stowage_location_complete", "complete", "1 when the latest measurement was complete."),
            (
                "stowage_location_measured_timestamp_seconds",
                "measured",
                "Time of the last complete measurement.",
            ),
            (
                "stowage_location_listed_timestamp_seconds",
                "listed",
                "When every file of it was last looked at, and not only what had changed.",
            ),
            (
                "stowage_shared_cache_credentials",
                "credentials",
                "Files in a cache that all workloads share that are called as credentials are.",
            ),
        ),
    )


def _accounts(section: Section) -> list[Metric]:
    families: list[Metric] = []
    for label in ("user", "team"):
        families += _gauges(
            [{label: name, **one} for name, one in section[f"{label}s"].items()],
            (label,),
            (
                (f"stowage_{label}_bytes", "bytes", f"What a {label} has, by the last complete measurements."),
                (
                    f"stowage_{label}_allocated_bytes",
                    "allocated",
                    f"What the files of a {label} take on disks, by the last complete measurements.",
                ),
                (f"stowage_{label}_quota_bytes", "quota", f"What a {label} may have."),
                (
                    f"stowage_{label}_quota_exceeded_since_timestamp_seconds",
                    "exceeded_since",
                    f"Since when a {label} has more than that.",
                ),
            ),
        )
    tracked = [{"kind": kind, "bytes": size} for kind, size in section["tracked"].items()]
    measured = ("stowage_accounts_measured_timestamp_seconds", "measured", "Since when all accounts are known.")
    return [
        *families,
        *_gauges(tracked, ("kind",), (("stowage_tracked_bytes", "bytes", "Files of the layout, by kind."),)),
        _gauge("stowage_accounts_complete", "1 when nothing is missing in the accounts.", section["complete"]),
        *_gauges([section], (), (measured,)),
    ]


def _count(items: Sequence[Any] | None) -> int | None:
    return None if items is None else len(items)


def _drives(section: Section) -> list[Metric]:
    return _gauges(
        section["drives"],
        ("workspace", "drive", "source"),
        (
            ("stowage_drive_bytes", "bytes", "Size of the files of a drive's source at the last complete measurement."),
            ("stowage_drive_files", "files", "Files of a drive's source at the last complete measurement."),
            ("stowage_drive_answers", "answers", "1 while the filesystem of a drive's source answers."),
            ("stowage_drive_available", "available", "1 while a drive's source is there, or is made when it is used."),
        ),
    )


_MOUNT_LABELS = ("workspace", "drive", "source", "node")
_MOUNT_COUNTERS = (
    ("stowage_network_mount_read_bytes", "read_bytes", "Bytes read from the server, not from the cache."),
    ("stowage_network_mount_write_bytes", "write_bytes", "Bytes written to the server."),
    ("stowage_network_mount_operations", "operations", "Operations that the server was asked for."),
    ("stowage_network_mount_rtt_seconds", "rtt_seconds", "Time between request and reply, of all operations together."),
    ("stowage_network_mount_retransmissions", "retransmissions", "Requests that were sent again."),
    ("stowage_network_mount_timeouts", "timeouts", "Major timeouts: the server did not answer any of the retries."),
)


def _network_mounts(section: Section) -> list[Metric]:
    mounts = section["mounts"]
    name = "stowage_network_mount_state"
    state = GaugeMetricFamily(name, "1 for the state that a network mount is in.", labels=(*_MOUNT_LABELS, "state"))
    for one in mounts:
        for each in STATES:
            state.add_metric([*_labels(one, _MOUNT_LABELS), each], one["state"] == each)
    gauges = _gauges(
        mounts,
        _MOUNT_LABELS,
        (
            ("stowage_network_mount_answers", "answers", "1 while the server of a network mount answers."),
            ("stowage_network_mount_available", "available", "1 while it is mounted from its source and answers."),
        ),
    )
    labels = (*_MOUNT_LABELS, "transport", "proto", "version")
    info = GaugeMetricFamily("stowage_network_mount_info", "How a network mount is made.", labels=labels)
    for one in mounts:
        info.add_metric(_labels(one, labels), 1)
    counters: list[Metric] = []
    for metric, key, text in _MOUNT_COUNTERS:
        counter = CounterMetricFamily(metric, text, labels=_MOUNT_LABELS)
        for one in mounts:
            if one[key] is not None:
                counter.add_metric(_labels(one, _MOUNT_LABELS), one[key])
        counters.append(counter)
    return [state, *gauges, info, *counters]


_TIER_LABELS = ("backend", "position")
TIER_GAUGES = (
    ("stowage_tier_bytes", "bytes", "Size of the files of a tier at the last complete measurement."),
    ("stowage_tier_allocated_bytes", "allocated", "What a tier takes on its disk, measured likewise."),
    ("stowage_tier_files", "files", "Files of a tier, measured likewise."),
    ("stowage_tier_buckets", "buckets", "Complete buckets in a tier, measured likewise."),
    ("stowage_tier_incomplete_buckets", "incomplete_buckets", "Buckets being written or removed, or left unfinished."),
    ("stowage_tier_written_bytes", "written_bytes", "Size of the data of the complete buckets."),
    ("stowage_tier_keys", "keys", "Keys in the complete buckets."),
    ("stowage_tier_capacity_bytes", "capacity_bytes", "Declared capacity of a tier."),
    ("stowage_tier_key_limit", "key_limit", "Declared number of keys of a tier at most."),
    ("stowage_tier_bucket_bytes", "bucket_bytes", "How much a member collects in memory before it writes a bucket."),
    ("stowage_tier_readable", "readable", "1 while the directory of a tier is there and can be listed."),
    ("stowage_tier_claimed", "claimed", "1 while it bears the owner mark of the tier."),
    ("stowage_tier_complete", "complete", "1 when the latest measurement was complete."),
    ("stowage_tier_measured_timestamp_seconds", "measured", "Time of the last complete measurement."),
    ("stowage_tier_full", "full", "1 while a tier takes no more writes, as is declared for a full one."),
    ("stowage_tier_unaccounted_bytes", "unaccounted_bytes", "Use of the tier's filesystem that is in no tier."),
    ("stowage_tier_filesystem_filling", "filling", "1 while its filesystem has less free than tiers may still write."),
    (
        "stowage_tier_settings_differ",
        "settings_differ",
        "1 while a process of the store has other settings than declared.",
    ),
    ("stowage_tier_writable", "writable", "1 while the processes of the store can write to the directory of a tier."),
)


def _tiers(section: Section) -> list[Metric]:
    tiers = section["tiers"]
    spaces = [{**one["filesystem"], **one} for one in tiers if one["filesystem"] is not None]
    running = [{**one, "count": len(one["processes"])} for one in tiers if one["processes"] is not None]
    return [
        *_gauges(tiers, _TIER_LABELS, TIER_GAUGES),
        *_gauges(
            spaces,
            _TIER_LABELS,
            (
                ("stowage_tier_filesystem_size_bytes", "size", "Size of the filesystem that a tier is on."),
                ("stowage_tier_filesystem_avail_bytes", "avail", "Free space there that stores can have."),
            ),
        ),
        *_gauges(
            running, _TIER_LABELS, (("stowage_tier_processes", "count", "Processes of the store that are on a tier."),)
        ),
    ]


def _tier_evictions(section: Section) -> list[Metric]:
    tiers = section["tiers"]
    blocked = GaugeMetricFamily(
        "stowage_tier_eviction_blocked",
        "1 while files of a tier have to go and cannot: too few may, or it could not be done.",
        labels=(*_TIER_LABELS, "reason"),
    )
    counters: list[Metric] = []
    for metric, key, text in (
        ("stowage_tier_evicted_bytes", "evicted_bytes", "Bytes on disk of the files removed from a tier."),
        ("stowage_tier_evicted_files", "evicted_files", "Files removed from a tier to make room."),
    ):
        counter = CounterMetricFamily(metric, text, labels=_TIER_LABELS)
        for one in tiers:
            counter.add_metric(_labels(one, _TIER_LABELS), one[key])
        counters.append(counter)
    for one in tiers:
        for reason in (SHORT, FAILED):
            blocked.add_metric([*_labels(one, _TIER_LABELS), reason], one["reason"] == reason)
    planned = (
        ("stowage_tier_eviction_planned_bytes", "planned_bytes", "Bytes on disk of the files that would go."),
        ("stowage_tier_eviction_planned_files", "planned_files", "Files that would go (evict: plan)."),
    )
    return [*counters, blocked, *_gauges(tiers, _TIER_LABELS, planned)]


def _volumes(section: Section) -> list[Metric]:
    text = "1 while a volume is there, on the filesystem that it was registered on."
    return _gauges(section["volumes"], ("volume",), (("stowage_volume_available", "available", text),))


def _copies(section: Section) -> list[Metric]:
    return _gauges(
        section["copies"],
        ("workspace", "drive"),
        (
            ("stowage_copy_bytes", "bytes", "Size of the files of a copy at the last complete measurement."),
            ("stowage_copy_files", "files", "Files of a copy at the last complete measurement."),
            ("stowage_copy_in_use", "in_use", "1 while a copy is in use or may be."),
            ("stowage_copy_last_used_timestamp_seconds", "last_used", "When a copy was last used; kept to the hour."),
        ),
    )


def _evictions(section: Section) -> list[Metric]:
    removed = CounterMetricFamily("stowage_evictions", "Copies removed from this host.", labels=("reason",))
    for reason in REASONS:
        removed.add_metric([reason], section["removed"].get(reason, 0))
    plan = section["plan"]
    blocked = GaugeMetricFamily(
        "stowage_eviction_blocked",
        "1 while copies have to go and cannot: none or too few may, removing did not help, or it could not be done.",
        labels=("reason",),
    )
    for reason in BLOCKED:
        blocked.add_metric([reason], section["reason"] == reason)
    return [
        removed,
        CounterMetricFamily(
            "stowage_evicted_bytes",
            "Bytes on disk that the removal of copies has freed.",
            value=section["removed_bytes"],
        ),
        blocked,
        _gauge(
            "stowage_deletion_waiting_copies",
            "Copies of deleted drives that cannot be removed yet.",
            len(section["waiting"]),
        ),
        _gauge(
            "stowage_eviction_aside_copies",
            "Copies that an eviction that was cut short has left aside, and that cannot go back or be deleted.",
            len(section["aside"]),
        ),
        _gauge("stowage_eviction_planned_copies", "Copies that are to be removed now.", len(plan)),
        _gauge(
            "stowage_eviction_planned_bytes",
            "Bytes on disk of the copies that are to be removed now.",
            sum(one["allocated"] for one in plan),
        ),
    ]


def _fills(section: Section) -> list[Metric]:
    states = [one["state"] for one in section["fills"]]
    family = GaugeMetricFamily("stowage_fills", "Copies that are filled now, or could not be.", labels=("state",))
    for state in ("filling", "failed"):
        family.add_metric([state], states.count(state))
    reserved = sum(one["reserved_bytes"] for one in section["fills"])
    text = "What the fills under way are still going to take, as far as their drives say."
    return [family, _gauge("stowage_fill_reserved_bytes", text, reserved)]


def _leases(section: Section) -> list[Metric]:
    family = GaugeMetricFamily("stowage_leases", "Uses of drives that are held for runs.", labels=("state",))
    for state in ("reserved", "leased"):
        family.add_metric([state], section[state])
    return [family]


def _config(section: Section) -> list[Metric]:
    return [
        _gauge(
            "stowage_config_last_reload_successful",
            "1 when the settings and declarations could be read the last time that they were.",
            section["successful"],
        )
    ]


def _cycle(section: Section) -> list[Metric]:
    return [_gauge("stowage_last_cycle_timestamp_seconds", "When the daemon last looked at the host.", section["time"])]


_FAMILIES: dict[str, Callable[[Section], list[Metric]]] = {
    "cycle": _cycle,
    "gate": _gate,
    "filesystems": _filesystems,
    "measuring": _measuring,
    "locations": _locations,
    "accounts": _accounts,
    "drives": _drives,
    "network_mounts": _network_mounts,
    "tiers": _tiers,
    "tier_evictions": _tier_evictions,
    "volumes": _volumes,
    "copies": _copies,
    "evictions": _evictions,
    "fills": _fills,
    "leases": _leases,
    "config": _config,
}


def build_info() -> bytes:
    """Return the metric that tells the version."""
    family = GaugeMetricFamily("stowage_build_info", "The version of Stowage on this host.", labels=("version",))
    family.add_metric([VERSION], 1)
    return bytes(generate_latest(_Collected([family])))

# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules for the settings of daemon and exporter: whoever writes them and whoever reads them checks the same."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any, Callable

from ..accounting import quotas
from ..errors import StowageError

Rule = Callable[[Any], str]

DEFAULT_LISTEN = "127.0.0.1:9823"

_MEMORY = re.compile(r"[1-9][0-9]*[KMGT]?|[1-9][0-9]?%|infinity")


def _seconds(low: float, high: float) -> Rule:
    def check(value: Any) -> str:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return "" if number and low <= value <= high else f"must be a number of seconds from {low:.10g} to {high:.10g}"

    return check


def _percentage(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return "" if number and 0 <= value <= 100 else "must be a percentage from 0 to 100"


def _evict(value: Any) -> str:
    return "" if value in ("on", "plan", "off") else "must be on, plan or off"


def _engine(value: Any) -> str:
    return "" if value in ("auto", "podman", "docker") else "must be auto, podman or docker"


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "must be true or false"


def _paths(value: Any) -> str:
    fits = isinstance(value, list) and all(isinstance(one, str) and os.path.isabs(one) for one in value)
    return "" if fits and all(one.isprintable() for one in value) else "must be a list of absolute paths"


def _megabytes(value: Any) -> str:
    number = isinstance(value, int) and not isinstance(value, bool)
    return "" if number and 4 <= value <= 65536 else "must be a whole number of MiB from 4 to 65536"


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value.isprintable() else "must be printable text"


def _weight(value: Any) -> str:
    number = isinstance(value, int) and not isinstance(value, bool)
    return "" if number and 1 <= value <= 10000 else "must be a whole number from 1 to 10000"


def _memory(value: Any) -> str:
    fits = isinstance(value, str) and _MEMORY.fullmatch(value)
    return "" if fits else "must be a size such as 128M, a percentage, or infinity"


def _listen(value: Any) -> str:
    try:
        address_of(value)
    except (StowageError, AttributeError):
        return f"must be ADDRESS:PORT, such as {DEFAULT_LISTEN} or [::1]:9823"
    return ""


def _file(value: Any) -> str:
    fits = isinstance(value, str) and value.isprintable() and (not value or os.path.isabs(value))
    return "" if fits and ":" not in value else "must be an absolute path without a colon, or empty"


def _textfile(value: Any) -> str:
    return _file(value) or (
        "" if not value or value.endswith(".prom") else "must end in .prom, which node_exporter reads"
    )


SETTINGS: Mapping[str, Rule] = {
    "host": _text,
    "cycle_s": _seconds(0.1, 3600),
    "scan_interval_s": _seconds(1, 86400),
    "evict": _evict,
    "minimum_age_s": _seconds(0, 365 * 86400),
    "boot_grace_s": _seconds(0, 86400),
    "measure_shared": _flag,
    "fill_engine": _engine,
    "quotas": lambda _value: "",  # each that is wrong is named for itself
    "disk_watermark_pct": _percentage,
    "watch": _flag,
    "watch_off": _paths,
    "full_listing_interval_s": _seconds(1, 7 * 86400),
    "watch_memory_mb": _megabytes,
}
"""What /etc/stowage/daemon.json may say."""

UNITS: Mapping[str, Rule] = {
    "cpu_weight": _weight,
    "memory_high": _memory,
    "exporter_listen": _listen,
    "exporter_certificate": _file,
    "exporter_key": _file,
    "exporter_client_ca": _file,
    "exporter_textfile": _textfile,
    "exporter_user": _text,
}
"""What the units are made of."""


def problems_of(value: Mapping[str, Any]) -> list[str]:
    """Return everything that is wrong with the settings *value*, each as ``setting: what is required``."""
    return _problems(value, SETTINGS) + [f"quotas: {one}" for one in quotas.problems_of(value.get("quotas", {}))]


def _problems(value: Mapping[str, Any], rules: Mapping[str, Rule]) -> list[str]:
    problems = []
    for name, given in value.items():
        if name not in rules:
            near = difflib.get_close_matches(name, rules, 1)
            problems.append(f"{name}: no such setting" + (f"; did you mean {near[0]}?" if near else ""))
            continue
        rule = rules[name](given)
        if rule:
            problems.append(f"{name}: {given!r} {rule}")
    return problems


def problems_of_units(value: Mapping[str, Any]) -> list[str]:
    """Return everything that is wrong with what the units are made of."""
    problems = _problems(value, UNITS)
    if bool(value.get("exporter_certificate")) != bool(value.get("exporter_key")):
        problems.append("exporter_certificate, exporter_key: each needs the other")
    if value.get("exporter_client_ca") and not value.get("exporter_certificate"):
        problems.append("exporter_client_ca: needs exporter_certificate")
    return problems


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of ``address:port``; an IPv6 address is in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise StowageError(f"--listen {text}: must be ADDRESS:PORT, such as {DEFAULT_LISTEN} or [::1]:9823")
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host, int(port)

# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest

from stowage_core import records
from stowage_core.places import Places
from stowage_core.services.daemon_settings import problems_of
from stowaged.settings import Settings, SettingsError, load


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"evict": "yes"}, "evict: 'yes' must be on, plan or off"),
        ({"evict": True}, "evict: True must be on, plan or off"),
        ({"cycle_s": 0}, "cycle_s: 0 must be a number of seconds from 0.1 to 3600"),
        ({"cycle_s": True}, "cycle_s: True must be a number of seconds from 0.1 to 3600"),
        ({"scan_interval_s": "300"}, "scan_interval_s: '300' must be a number of seconds from 1 to 86400"),
        ({"minimum_age_s": -1}, "minimum_age_s: -1 must be a number of seconds from 0 to 31536000"),
        ({"measure_shared": "no"}, "measure_shared: 'no' must be true or false"),
        ({"disk_watermark_pct": 101}, "disk_watermark_pct: 101 must be a percentage from 0 to 100"),
        ({"disk_watermark_pct": True}, "disk_watermark_pct: True must be a percentage from 0 to 100"),
        ({"watch": 1}, "watch: 1 must be true or false"),
        ({"watch_off": "/mnt"}, "watch_off: '/mnt' must be a list of absolute paths"),
        ({"watch_off": ["mnt"]}, "watch_off: ['mnt'] must be a list of absolute paths"),
        ({"full_listing_interval_s": 0}, "full_listing_interval_s: 0 must be a number of seconds from 1 to 604800"),
        ({"watch_memory_mb": 1}, "watch_memory_mb: 1 must be a whole number of MiB from 4 to 65536"),
        ({"watch_memory_mb": 64.5}, "watch_memory_mb: 64.5 must be a whole number of MiB from 4 to 65536"),
        ({"host": "a\nb"}, "host: 'a\\nb' must be printable text"),
        ({"quotas": []}, "quotas: must be a mapping with users, teams, default_user and default_team"),
        (
            {"quotas": {"users": {"ann": "lots"}}},
            "quotas: users: ann: 'lots' is not a size; write bytes or a quantity such as 500G or 4Ti",
        ),
        ({"evictt": "on"}, "evictt: no such setting; did you mean evict?"),
        ({"colour": "red"}, "colour: no such setting"),
    ],
)
def test_each_rule(value: dict[str, Any], said: str) -> None:
    assert problems_of(value) == [said]


def test_all_problems_in_one_line(tmp_path: Any) -> None:
    places = Places.under(str(tmp_path))
    records.write(places.daemon_json, {"evict": "yes", "cycle_s": 0})
    with pytest.raises(SettingsError) as error:
        load(places, {})
    assert len(error.value.problems) == 2 and "\n" not in str(error.value)
    assert str(error.value).startswith(f"{places.daemon_json}: ")


def test_defaults_and_the_environment(tmp_path: Any) -> None:
    places = Places.under(str(tmp_path))
    assert load(places, {}) == Settings()
    assert load(places, {"STORAGE_SCAN_INTERVAL_S": "60"}).scan_interval_s == 60
    records.write(places.daemon_json, {"scan_interval_s": 600})
    assert load(places, {}).scan_interval_s == 600
    assert load(places, {"STORAGE_SCAN_INTERVAL_S": "60"}).scan_interval_s == 60
    assert load(places, {"STORAGE_SCAN_INTERVAL_S": "60"}).declared == {"scan_interval_s": 600}


def test_the_watermark_in_the_environment(tmp_path: Any) -> None:
    places = Places.under(str(tmp_path))
    assert load(places, {}).disk_watermark_pct == 90
    records.write(places.daemon_json, {"disk_watermark_pct": 80})
    assert load(places, {}).disk_watermark_pct == 80
    assert load(places, {"DISK_WATERMARK_PCT": "0"}).disk_watermark_pct == 0
    assert load(places, {"DISK_WATERMARK_PCT": ""}).disk_watermark_pct == 80


@pytest.mark.parametrize("value", ["often", "-5", "nan", "inf"])
@pytest.mark.parametrize("variable", ["STORAGE_SCAN_INTERVAL_S", "DISK_WATERMARK_PCT"])
def test_a_wrong_variable_is_named(tmp_path: Any, variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        load(Places.under(str(tmp_path)), {variable: value})


def test_no_interval_is_none(tmp_path: Any) -> None:
    with pytest.raises(SettingsError, match="STORAGE_SCAN_INTERVAL_S"):
        load(Places.under(str(tmp_path)), {"STORAGE_SCAN_INTERVAL_S": "0"})

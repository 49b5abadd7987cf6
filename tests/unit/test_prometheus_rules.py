# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules for Prometheus: they name metrics that there are, and each is tested; `make lint` runs those tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from stowaged import metrics

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = sorted((REPOSITORY / "roles/daemon/files").glob("*.rules.yml"))
TESTS = sorted((REPOSITORY / "tests/prometheus").glob("*.yml"))


def rules() -> list[dict[str, Any]]:
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def test_the_metrics_of_the_rules_are_there() -> None:
    text = Path(metrics.__file__).read_text()
    named = {name for rule in rules() for name in re.findall(r"\bstowage_[a-z_]+\b", rule["expr"])}
    assert named and [name for name in sorted(named) if f'"{name}"' not in text] == []
    described = (REPOSITORY / "docs/metrics.md").read_text()
    assert [name for name in sorted(named) if name not in described] == []


def test_every_alert_says_what_to_do_and_is_tested() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert [rule for rule in alerts if set(rule["annotations"]) != {"summary", "description"}] == []
    tested = {
        case["alertname"]
        for path in TESTS
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert {rule["alert"] for rule in alerts} == tested

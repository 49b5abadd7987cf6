# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of a report in a real browser: what it has laid out, painted and run. Pictures are left in .build/report."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import REPOSITORY, Chromium
from fleet_lab import NOW, Fleet

from ansible_collections.stowage.host.plugins.plugin_utils.report import fleet
from ansible_collections.stowage.host.plugins.plugin_utils.report.hosts import Asked
from ansible_collections.stowage.host.plugins.plugin_utils.report.page import page

PICTURES = REPOSITORY / ".build/report"
HOSTS = 24
NARROW, TABLET, WIDE = 360, 720, 1280

# What is wider than the screen, and cannot be scrolled to by itself.
OVERFLOWING = """(() => {
  const found = document.documentElement.scrollWidth > innerWidth ? ["the page"] : [];
  for (const one of document.querySelectorAll("body *")) {
    if (one.closest("nav") || one.closest("thead") || one.closest("svg")) continue;
    const box = one.getBoundingClientRect();
    if (box.width && box.right > innerWidth + 1) found.push(one.tagName + " " + one.textContent.slice(0, 60));
  }
  return found;
})()"""

# The least contrast, by WCAG's formula, between a text and what is behind it.
CONTRASTS = """(() => {
  const channels = color => (color.match(/[0-9.]+/g) || []).map(Number);
  const light = color => channels(color).slice(0, 3)
    .map(value => value / 255).map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = one => {
    for (; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if (channels(color)[3] !== 0) return color;
    }
  };
  const poor = {};
  for (const one of document.querySelectorAll("body *")) {
    const own = Array.from(one.childNodes).some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || one.closest("svg") || ["SCRIPT", "STYLE", "OPTION"].includes(one.tagName)) continue;
    if (!one.getClientRects().length) continue;
    const [text, ground] = [light(getComputedStyle(one).color), light(behind(one))];
    const contrast = (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
    if (contrast < 4.5) poor[one.tagName + "." + one.className] = contrast.toFixed(2);
  }
  return poor;
})()"""


def made(directory: Path, known: Fleet) -> Path:
    asked = [
        Asked(name, facts, "" if facts else "no route to host", bool(facts)) for name, facts in known.hosts.items()
    ]
    path = directory / "report.html"
    path.write_text(page(fleet.fleet(asked, NOW)))
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("report"), Fleet(HOSTS))


def enter(browser: Chromium, field: str, value: str) -> None:
    """Fill in a field of the part about hosts, as a user does."""
    event = "input" if field == "input" else "change"
    one = f"document.querySelector('.hosts {field}')"
    browser.ask(f"{one}.value = '{value}'; {one}.dispatchEvent(new Event('{event}'))")


def unfold(browser: Chromium) -> None:
    browser.ask('document.querySelectorAll("details").forEach(one => { one.open = true; })')


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, TABLET, WIDE])
def test_it_fits_the_screen_and_can_be_read(browser: Chromium, report: Path, width: int, dark: bool) -> None:
    browser.show(report, width=width, dark=dark)
    name = f"{width}-{'dark' if dark else 'light'}"
    browser.picture(PICTURES / f"{name}.png")
    assert browser.ask(OVERFLOWING) == []
    assert browser.ask(CONTRASTS) == {}
    ground = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 150) is dark
    unfold(browser)
    browser.picture(PICTURES / f"{name}-unfolded.png", whole=False)
    assert browser.ask(OVERFLOWING) == []
    assert browser.ask(CONTRASTS) == {}
    assert browser.troubles() == []


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_a_bad_day_fits_the_screen_too(browser: Chromium, tmp_path: Path, width: int) -> None:
    browser.show(made(tmp_path, Fleet(HOSTS, bad_day=True)), width=width)
    unfold(browser)
    browser.picture(PICTURES / f"{width}-bad-day-unfolded.png", whole=False)
    assert browser.ask(OVERFLOWING) == []
    assert browser.troubles() == []


def test_every_part_and_every_bar_is_seen(browser: Chromium, report: Path) -> None:
    browser.show(report, width=WIDE)
    unfold(browser)
    seen = "section, .card, .row > summary"
    heights = browser.ask(f"Array.from(document.querySelectorAll('{seen}'), one => one.getBoundingClientRect().height)")
    assert len(heights) > HOSTS and min(heights) > 20
    bars = browser.ask(
        """Array.from(document.querySelectorAll("svg.bar rect"), one =>
             [one.getBoundingClientRect().width, Number(one.getAttribute("width")), getComputedStyle(one).fill])"""
    )
    assert len(bars) > 3 * HOSTS
    assert all(width > 0 for width, wanted, _fill in bars if wanted > 0.5)
    assert not {fill for _width, _wanted, fill in bars} & {"none", "rgba(0, 0, 0, 0)", "rgb(0, 0, 0)"}


def test_without_scripts_nothing_is_missing(browser: Chromium, report: Path) -> None:
    browser.show(report, width=WIDE, scripts=False)
    assert browser.ask('document.querySelectorAll(".hosts .row").length') == HOSTS
    # No field that does nothing.
    assert browser.ask('document.querySelectorAll("input, select").length') > 0
    assert (
        browser.ask('Array.from(document.querySelectorAll("input, select")).some(one => one.getClientRects().length)')
        is False
    )
    # Folding is the browser's own.
    height = 'document.querySelector(".hosts .row").getBoundingClientRect().height'
    assert browser.ask(height) < 60
    x, y = browser.ask(
        """(() => { const one = document.querySelector(".hosts .row > summary"); one.scrollIntoView({block: "center"});
             const box = one.getBoundingClientRect(); return [box.left + 30, box.top + 12]; })()"""
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    assert browser.ask(height) > 200
    assert browser.troubles() == []


def test_hosts_can_be_found_and_ordered(browser: Chromium, report: Path) -> None:
    browser.show(report, width=WIDE)
    shown = 'Array.from(document.querySelectorAll(".hosts .row")).filter(one => !one.hidden)'
    names = f'{shown}.map(one => one.querySelector(".name").textContent)'
    assert browser.ask(f"{names}.length") == HOSTS
    enter(browser, "input", "GPU-1 open")
    found = browser.ask(names)
    assert 0 < len(found) <= 10 and all(name.startswith("gpu-1") for name in found)
    assert browser.ask('document.querySelector(".hosts output").textContent') == f"{len(found)} of {HOSTS}"
    enter(browser, "input", "")
    enter(browser, "select", "u")
    used = browser.ask(f"{shown}.map(one => Number(one.dataset.u))")
    assert len(used) == HOSTS and used == sorted(used, reverse=True)
    enter(browser, "select", "")
    assert browser.ask(names) == sorted(browser.ask(names))
    assert browser.troubles() == []


def test_an_old_report_says_so(browser: Chromium, report: Path) -> None:
    browser.show(report, width=WIDE)
    assert browser.ask('document.getElementById("old").innerText').startswith("Made ")


def test_it_prints_unfolded_on_white(browser: Chromium, report: Path) -> None:
    browser.show(report, width=WIDE, dark=True)
    before = browser.ask('document.querySelectorAll("details[open]").length')
    browser.ask('window.dispatchEvent(new Event("beforeprint"))')
    assert browser.ask('document.querySelectorAll("details:not([open])").length') == 0
    browser.ask('window.dispatchEvent(new Event("afterprint"))')
    assert browser.ask('document.querySelectorAll("details[open]").length') == before
    browser.do(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask('getComputedStyle(document.querySelector("nav")).display') == "none"
    assert browser.ask(CONTRASTS) == {}


def test_no_name_is_run_or_shown_as_markup(browser: Chromium, tmp_path: Path) -> None:
    hostile = "\"'><script>window.taken = 1</script><img src=x onerror='window.taken = 1'><b>"
    browser.show(made(tmp_path, Fleet(12, named=lambda name: name + hostile)), width=WIDE)
    unfold(browser)
    assert browser.ask("window.taken") is None
    assert browser.ask('document.querySelectorAll("script").length') == 1
    assert browser.ask('document.querySelectorAll("img").length') == 0
    assert browser.ask('document.querySelector(".hosts .name").textContent') == f"gpu-01{hostile}"
    assert browser.ask(OVERFLOWING) == []
    assert browser.troubles() == []

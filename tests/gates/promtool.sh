#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Checks the rules for Prometheus and runs their tests with promtool, which it gets from Debian's package where there is
# none. The package is only unpacked: installed, it would start a Prometheus on this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$PWD/.build/promtool
tool=$(command -v promtool || true)
if [[ -z $tool ]]; then
    tool=$work/usr/bin/promtool
    if [[ ! -x $tool ]]; then
        mkdir -p "$work/deb"
        rm -f "$work"/deb/*.deb
        cd "$work/deb"
        # The package lists of a fresh machine are empty or old, so a first failure is not the last word.
        apt-get -q download prometheus >apt.log 2>&1 </dev/null || {
            apt-get -q update >apt.log 2>&1 </dev/null || true
            apt-get -q download prometheus >>apt.log 2>&1 </dev/null || {
                echo "promtool: no promtool on this machine, and no package prometheus to be had: $(tail -n 1 apt.log)" >&2
                exit 1
            }
        }
        dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x -C "$work" ./usr/bin/promtool
        rm -f prometheus_*.deb
        cd - >/dev/null
    fi
fi
"$tool" check rules roles/daemon/files/*.rules.yml
"$tool" test rules tests/prometheus/*.yml

#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Prints the path of a Chromium, which it gets from Debian's packages where there is none. They are only unpacked, with
# what they need and this machine lacks: installed, they would change the machine.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v chromium && exit 0
work=$PWD/.build/chromium
if [[ ! -x $work/run ]]; then
    rm -rf "$work"
    mkdir -p "$work/deb" "$work/root"
    cd "$work/deb"
    fetch() {
        # What is installed here is not named: its libraries are found where they are.
        apt-get -s install --no-install-recommends chromium fonts-dejavu-core 2>apt.log </dev/null |
            sed -n 's/^Inst \([^ ]*\) .*/\1/p' >packages && [[ -s packages ]] &&
            xargs apt-get -q download >apt.log 2>&1 <packages
    }
    # The package lists of a fresh machine are empty or old, so a first failure is not the last word.
    fetch || {
        apt-get -q update >apt.log 2>&1 </dev/null || true
        fetch || {
            echo "chromium: no chromium on this machine, and its packages are not to be had: $(tail -n 1 apt.log)" >&2
            exit 1
        }
    }
    for package in *.deb; do
        dpkg-deb --extract "$package" "$work/root"
    done
    cd "$work"
    rm -rf deb
    {
        echo "<fontconfig><dir>$work/root/usr/share/fonts</dir><cachedir>$work/fonts</cachedir>"
        echo "<include ignore_missing=\"yes\">/etc/fonts/fonts.conf</include></fontconfig>"
    } >fonts.conf
    {
        echo '#!/bin/sh'
        echo "export LD_LIBRARY_PATH=$(find "$work/root/usr/lib" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)"
        echo "export FONTCONFIG_FILE=$work/fonts.conf"
        echo "exec $work/root/usr/lib/chromium/chromium \"\$@\""
    } >new
    chmod +x new
    mv new run
fi
echo "$work/run"

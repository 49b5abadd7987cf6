#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Installs the Debian packages named as arguments, those that are missing; says in one line when it cannot.
set -euo pipefail

missing=()
for package in "$@"; do
    if [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]]; then
        missing+=("$package")
    fi
done
((${#missing[@]})) || exit 0

if ! command -v apt-get >/dev/null; then
    echo "packages: no apt-get on this machine; install ${missing[*]} by hand" >&2
    exit 1
fi
if ((EUID != 0)); then
    echo "packages: not root; run: apt-get install ${missing[*]}" >&2
    exit 1
fi
echo "packages: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
install=(apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}")
# The package lists of a fresh machine are empty or old, so a first failure is not the last word.
"${install[@]}" >/dev/null 2>&1 </dev/null || {
    apt-get -q update >/dev/null </dev/null
    "${install[@]}" >/dev/null </dev/null
}

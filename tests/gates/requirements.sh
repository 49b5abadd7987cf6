#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Pins the newest releases of what requirements/*.in name. Each list is pinned by the oldest Python that uses it.
set -euo pipefail
cd "$(dirname "$0")/../.."

for list in requirements/*.in; do
    name=$(basename "$list" .in)
    case $name in
        oldest-python) python=python3.9 ;;
        newest-core) python=python3.12 ;;
        *) python=python3.11 ;;
    esac
    venv=.build/requirements/$name
    if [[ $name == mooncake ]]; then
        # For hosts, where it is unpacked: the wheels of their Pythons, by what is in them.
        rm -rf "$venv"
        for version in 3.11 3.13; do
            "$python" -m pip download -qq --no-deps --only-binary=:all: --platform=manylinux_2_28_x86_64 \
                --python-version="$version" --dest="$venv" --requirement "$list"
        done
        wheels=("$venv"/*.whl)
        pinned=$(basename "${wheels[0]}" | cut -d- -f1,2 | sed 's/-/==/; s/_/-/g')
        {
            echo "# Made from $name.in by make requirements."
            echo "$pinned$(sha256sum "${wheels[@]}" | sed 's/^\([0-9a-f]*\).*/ --hash=sha256:\1/' | tr -d '\n')"
        } >"requirements/$name.txt"
        continue
    fi
    "$python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install -qq --upgrade --requirement "$list"
    {
        echo "# Made from $name.in by make requirements."
        "$venv/bin/python" -m pip freeze
    } >"$venv.txt"
    mv "$venv.txt" "requirements/$name.txt"
done

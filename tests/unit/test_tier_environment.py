# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the store is told of a tier, in every form, and what may not be said beside it."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.stowage.host.plugins.filter.render import FilterModule
from stowage_core.drives.declared import Problems
from stowage_core.layout import environment_file
from stowage_core.tiers.declared import Eviction, Tier, Watermark, read_backends
from stowage_core.tiers.environment import RENDERED, leader_arguments, member_environment

render = FilterModule().filters()["render"]

ALWAYS = {
    "MOONCAKE_OFFLOAD_ENABLED": "true",
    "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/kv",
    "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": "16777216",
    "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": "64",
}
HIGH = "MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO"
LOW = "MOONCAKE_OFFLOAD_DISK_EVICTION_LOW_WATERMARK_RATIO"


@pytest.mark.parametrize(
    ("tier", "more"),
    [
        (Tier("/kv"), {}),
        (
            Tier("/kv", capacity=4 * 1024**4),
            {
                "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": "4398046511104",
                "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": "4398046511104",
            },
        ),
        (Tier("/kv", key_limit=10000000), {"MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT": "10000000"}),
        (Tier("/kv", eviction=Eviction()), {}),
        (Tier("/kv", eviction=Eviction(policy="LRU")), {"MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "lru"}),
        (Tier("/kv", eviction=Eviction(policy="FIFO")), {"MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "fifo"}),
        (
            Tier("/kv", eviction=Eviction(enabled=False)),
            {
                "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "none",
                "MOONCAKE_OFFLOAD_ENABLE_DISK_WATERMARK_EVICTION": "false",
            },
        ),
        (Tier("/kv", eviction=Eviction(watermark=Watermark(90, 80))), {HIGH: "0.90", LOW: "0.80"}),
        (Tier("/kv", eviction=Eviction(watermark=Watermark(100, 1))), {HIGH: "1.00", LOW: "0.01"}),
        (Tier("/kv", clean_after_delete=True), {}),
    ],
)
def test_the_environment_of_a_member(tier: Tier, more: dict[str, str]) -> None:
    assert member_environment(tier) == {**ALWAYS, **more}


@given(st.integers(2, 100), st.data())
def test_ratios_have_two_decimals(high: int, data: Any) -> None:
    low = data.draw(st.integers(1, high - 1))
    found = member_environment(Tier("/kv", eviction=Eviction(watermark=Watermark(high, low))))
    for name, mark in ((HIGH, high), (LOW, low)):
        assert re.fullmatch(r"[01]\.[0-9]{2}", found[name]) and round(float(found[name]) * 100) == mark
    assert set(found) <= set(RENDERED)


def chat(*groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "chat", "members": list(groups) or [group()], **fields}


def group(path: str = "/kv", **fields: Any) -> dict[str, Any]:
    return {"capacityPerMember": "1Gi", "localDisks": [{"path": path}], **fields}


BOTH = ["-enable_offload=true", "-offload_on_evict=true"]


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        (chat(), BOTH),
        (chat({}, group()), BOTH),
        (chat({}), []),
        (chat({"store": "files", "local_disks": [{"path": "/kv"}]}), []),
        (chat(leader_extra_args=["-v=1", "--eviction_ratio", "0.1"]), [*BOTH, "-v=1", "--eviction_ratio", "0.1"]),
        (chat({}, leaderExtraArgs=["-v=1"]), ["-v=1"]),
    ],
)
def test_the_arguments_of_a_leader(value: dict[str, Any], arguments: list[str]) -> None:
    assert leader_arguments(read_backends([value])[0]) == arguments


@pytest.mark.parametrize("flag", ["enable_offload", "offload_on_evict"])
@pytest.mark.parametrize("form", ["-{}=true", "--{}=false", "-{}", "--{}", "--no{}", "-no{}", "{}=true", "{}"])
@pytest.mark.parametrize("dashes", [False, True])
@pytest.mark.parametrize("members", [[{}], [group()]], ids=["without a tier", "with one"])
def test_both_flags_are_refused_in_every_form(
    flag: str, form: str, dashes: bool, members: list[dict[str, Any]]
) -> None:
    argument = form.format(flag.replace("_", "-") if dashes else flag)
    with pytest.raises(Problems) as caught:
        read_backends([chat(*members, leaderExtraArgs=["-v=1", argument])])
    assert caught.value.problems == [
        f"chat: leaderExtraArgs[1]: '{argument}' sets {flag}, which follows from the members' local_disks, so that "
        "leader and members agree; leave it out"
    ]


@pytest.mark.parametrize(
    "argument",
    [
        *("--flagfile=/x", "-flagfile", "---flagfile=/x", "flagfile=/x", "--fromenv=enable_offload"),
        *("-tryfromenv=offload_on_evict,v", "--tryfromenv", "-flagfile =/x"),
    ],
)
def test_flags_from_elsewhere_are_refused(argument: str) -> None:
    with pytest.raises(Problems) as caught:
        read_backends([chat(leader_extra_args=[argument])])
    assert caught.value.problems == [
        f"chat: leader_extra_args[0]: '{argument}' takes flags from elsewhere, perhaps those that follow from the "
        "members' local_disks; write them here, one by one"
    ]


@pytest.mark.parametrize("argument", [" -enable_offload", " --flagfile=/x", "-v=1 ", "\u00a0-v=1", " "])
def test_arguments_with_blanks_at_an_end_are_refused(argument: str) -> None:
    with pytest.raises(Problems) as caught:
        read_backends([chat(leader_extra_args=[argument])])
    (problem,) = caught.value.problems
    assert problem.startswith("chat: leader_extra_args[0]: ")


@pytest.mark.parametrize("argument", ["-enable_offload =false", "---offload_on_evict"])
def test_both_flags_are_refused_in_odd_forms_too(argument: str) -> None:
    with pytest.raises(Problems, match="which follows from the members' local_disks"):
        read_backends([chat(leader_extra_args=[argument])])


@pytest.mark.parametrize(
    "argument", ["--offload_force_evict=true", "-enable_offload_x=1", "--x=-enable_offload", "-v=no"]
)
def test_other_arguments_are_not(argument: str) -> None:
    assert read_backends([chat(leader_extra_args=[argument])])[0].leader_extra_args == (argument,)


@pytest.mark.parametrize("name", RENDERED)
def test_a_name_that_is_rendered_is_refused(name: str) -> None:
    with pytest.raises(Problems) as caught:
        read_backends([chat(group(extraEnv={name: "1"}))])
    (problem,) = caught.value.problems
    remedy = "leave it out" if "_BUCKET_SIZE_" in name or "_BUCKET_KEYS_" in name else "say it there"
    assert problem == (
        f"chat: members[0].extraEnv.{name}: is rendered from local_disks, and whichever of two variables of one name "
        f"wins is up to the runtime; {remedy}"
    )


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        (
            {"MOONCAKE_BUCKET_EVICTION_POLICY": "lru"},
            ".MOONCAKE_BUCKET_EVICTION_POLICY: is the store's older name of MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY, "
            "which is rendered from local_disks; say it there",
        ),
        (
            {"a-b": "1"},
            ".a-b: is not a variable's name; it has letters, digits and _, and no digit at its beginning",
        ),
        ({"A": 1}, ".A: must be a text without control characters; put quotes around numbers"),
        ({"A": "1\n2"}, ".A: must be a text without control characters; put quotes around numbers"),
        (["A=1"], ": a list must be a dictionary of names and values"),
    ],
)
def test_what_is_no_extra_variable(environment: Any, problem: str) -> None:
    with pytest.raises(Problems) as caught:
        read_backends([chat(group(extra_env=environment))])
    assert caught.value.problems == ["chat: members[0].extra_env" + problem]


def test_the_store_gets_extra_variables_too() -> None:
    assert render([chat(group(extra_env={"MOONCAKE_OFFLOAD_USE_URING": "true"}))], "mooncake", "chat") == {
        "environment": {**ALWAYS, "MOONCAKE_OFFLOAD_USE_URING": "true"},
        "leader_arguments": BOTH,
    }


TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(" $(){}\"'`\\#%=;"), max_size=20)


@given(TEXTS.map(str.strip))
def test_an_environment_file_says_what_was_declared(text: str) -> None:
    value = [chat(group(path=f"/kv{text}".rstrip("/."), extra_env={"A": text}))]
    (found,) = read_backends(value)
    tier = found.members[0].tier
    assert tier is not None
    parsed = environment_file.parse(render(value, "environment", "chat").encode())
    assert parsed == {**member_environment(tier), "A": text}


def test_parts_of_a_pod() -> None:
    rendered = render([chat(group(extra_env={"A": "$(B) $$"}), scale_in={"grace_period_seconds": 30})], *POD)
    assert rendered["pod"] == {
        "terminationGracePeriodSeconds": 90,
        "volumes": [{"name": "kv-cache-tier", "hostPath": {"path": "/kv", "type": "Directory"}}],
    }
    container = rendered["container"]
    assert container["volumeMounts"] == [{"name": "kv-cache-tier", "mountPath": "/kv"}]
    assert container["env"] == [
        *({"name": name, "value": value} for name, value in ALWAYS.items()),
        {"name": "A", "value": "$$(B) $$$$"},
    ]
    assert set(container) == {"env", "volumeMounts", "lifecycle"}


POD = ("kubernetes", "chat")


class Store(http.server.BaseHTTPRequestHandler):
    """The store's own service, as far as a member's last request needs it."""

    status = 200
    asked: list[tuple[str, dict[str, Any]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, json.loads(body)))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"no such tier")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.mark.parametrize(("status", "code", "said"), [(200, 0, b""), (500, 1, b"no such tier\n")])
def test_the_hook_signs_off_the_tier(status: int, code: int, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "asked", [], raising=False)
    monkeypatch.setattr(Store, "status", status)
    with http.server.HTTPServer(("127.0.0.1", 0), Store) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        rendered = render([chat(scaleIn={"gracePeriodSeconds": 30})], *POD, rest_port=server.server_port)
        (python, *arguments) = rendered["container"]["lifecycle"]["preStop"]["exec"]["command"]
        done = subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
        thread.join()
    assert (python, done.returncode, done.stderr) == ("python3", code, said)
    assert Store.asked == [("/api/unmount_local_disk", {"grace_period_seconds": 30})]


def test_a_drop_in() -> None:
    value = [chat(group(path="/mnt/kv %1"), scale_in={"grace_period_seconds": 5})]
    assert render(value, "systemd", "chat", environment_path="/etc/kv%/chat.env") == (
        "# Written by Stowage. Local changes are lost.\n"
        "[Unit]\n"
        'RequiresMountsFor="/mnt/kv %%1"\n'
        "\n"
        "[Service]\n"
        "EnvironmentFile=/etc/kv%%/chat.env\n"
        "TimeoutStopSec=65\n"
    )


def test_which_group() -> None:
    groups = [{}, group("/a"), group("/b"), {"store": "files", "localDisks": [{"path": "/c"}]}]
    name = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
    assert render([chat(*groups)], "mooncake", "chat", 2)["environment"][name] == "/b"
    assert render([chat(*groups[:2])], "mooncake", "chat")["environment"][name] == "/a"
    for position, said in ((None, "which group is not said"), (3, "group 3 has no tier"), (True, "group True has no")):
        with pytest.raises(AnsibleFilterError, match=rf"^render: chat: {said}.*: 1, 2$"):
            render([chat(*groups)], "mooncake", "chat", position)


@pytest.mark.parametrize(
    ("value", "arguments", "problem"),
    [
        ([], ("mooncake", "chat"), "backend: 'chat' is not declared"),
        ([chat()], ("mooncake", "chats"), "backend: 'chats' is not declared; did you mean chat?"),
        (
            [chat()],
            ("kubernets", "chat"),
            "target: 'kubernets' is not one of mooncake, environment, kubernetes, systemd; did you mean kubernetes?",
        ),
        ([chat()], (*POD, 0, "8080"), "rest_port: '8080' is not the number of a port"),
        ([chat()], (*POD, 0, 0), "rest_port: 0 is not the number of a port"),
        ([chat()], ("systemd", "chat"), "environment_path: must be a path"),
        *(
            (
                [chat()],
                ("systemd", "chat", None, 8080, f"/etc/kv{character}.env"),
                f"environment_path: '/etc/kv{character}.env' may not contain \\ * ? [, which systemd does not take as "
                "they are; name another file",
            )
            for character in "\\*?["
        ),
        ([chat(group("/kv:1"))], POD, "chat: Kubernetes mounts nothing at a path with a colon, as '/kv:1'"),
        ([chat({})], POD, "chat: which group is not said; the positions of those that have one are: none"),
        ([chat(group("kv"))], POD, "chat: members[0].localDisks[0].path: 'kv' must be absolute; begin it with /"),
        (
            [chat(group(capacityPerMember="1Mi"))],
            POD,
            "chat: members[0].capacity_per_member: 1048576 bytes cannot hold one bucket, which stays in memory until "
            "it is complete; a bucket has 16777216 bytes (16Mi)",
        ),
        ({}, POD, "the input: must be a list"),
    ],
)
def test_what_is_not_rendered(value: Any, arguments: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(AnsibleFilterError) as caught:
        render(value, *arguments)
    assert str(caught.value) == "render: " + problem

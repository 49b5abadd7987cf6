#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report a host's disks, filesystems and networks, and everything that Stowage has on it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: storage_facts
short_description: Report a host's disks, shared filesystems, networks and Stowage objects
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Reports the disks of a host in plain words, where they are mounted and how much room they have, and which of them to
    recommend for the data location and why.
  - Reports which filesystems are shared between hosts, the addresses and RDMA ports of the host, the tools of NFS, and
    every object that Stowage has there, with its size.
  - The facts are C(ansible_facts.stowage_storage). Their part C(compact) is what placement needs of a host, small
    enough to be cached for a whole site.
  - Works on a host that has nothing of Stowage yet, with nothing but Python.
options:
  labels:
    description:
      - What only an operator knows about the host. They are part of the facts. The playbook C(stowage.host.place) gives
        the host's variable C(stowage_topology) here.
      - Placement reads V(site), V(rack), V(infiniband_fabric) and V(nvlink_domain).
    type: dict
    default: {}
attributes:
  check_mode:
    description: Does the same in check mode.
    support: full
  diff_mode:
    description: There is never anything to show.
    support: N/A
  facts:
    description:
      - Returns C(ansible_facts). They are kept for the play, and between plays when a fact cache is configured.
    support: full
  platform:
    description: Linux.
    support: full
    platforms: linux
notes:
  - Run it as root. Other users cannot read owner marks and the data location, and are told so by a warning.
  - A shared filesystem whose servers are gone blocks whoever asks it. It is asked in a process of its own that is given
    up after a second, and reported with RV(ansible_facts.stowage_storage.filesystems[].answers=false).
  - What cannot be read is reported in RV(ansible_facts.stowage_storage.problems) and as a warning. It never makes the
    module fail, because then a host could not be looked at when that matters.
seealso:
  - module: stowage.host.data_location
  - plugin: stowage.host.disk_table
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Look at the storage of the host
  stowage.host.storage_facts:

- name: Show its disks, and which is recommended for the data location
  ansible.builtin.debug:
    msg: "{{ ansible_facts.stowage_storage | stowage.host.disk_table }}"

- name: Say where the host is, for placement
  stowage.host.storage_facts:
    labels:
      site: eu-west
      rack: r12
      infiniband_fabric: ib-1

- name: Stop when a shared filesystem does not answer
  ansible.builtin.assert:
    that: ansible_facts.stowage_storage.filesystems | rejectattr('answers') | length == 0
    quiet: true
"""

RETURN = r"""
ansible_facts:
  description: The facts, below the one name C(stowage_storage).
  returned: always
  type: dict
  contains:
    stowage_storage:
      description: The storage of the host. All sizes are bytes.
      returned: always
      type: dict
      contains:
        gathered:
          description: When the facts were gathered, in seconds since 1970.
          returned: always
          type: float
          sample: 1764420000.25
        disks:
          description:
            - The disks, mounted or not. RAID arrays are disks; partitions, LVM and LUKS volumes are not.
          returned: always
          type: list
          elements: dict
          contains:
            name:
              description: Its name in C(/dev).
              type: str
              sample: nvme0n1
            device:
              description: Its path.
              type: str
              sample: /dev/nvme0n1
            kind:
              description:
                - V(NVMe SSD), V(SSD), V(RAID array), V(hard disk), V(network disk) (iSCSI, Fibre Channel, NVMe over
                  fabrics, RBD, a cloud's volume), V(disk image) (a loop device), or V(disk) when the kernel does not
                  tell.
              type: str
              sample: NVMe SSD
            model:
              description: What it calls itself, empty when it does not; of a RAID array, what its members do.
              type: str
              sample: SAMSUNG MZQL23T8HCLS-00A07
            size_bytes:
              description: Its size.
              type: int
              sample: 3840755982336
            system_disk:
              description:
                - Whether it holds a filesystem mounted at C(/), C(/boot), C(/boot/efi), C(/efi), C(/usr) or C(/var).
              type: bool
              sample: false
            mounts:
              description: Where filesystems on it are mounted.
              type: list
              elements: str
              sample: [/mnt/nvme0]
            members:
              description: The disks that a RAID array is made of.
              type: list
              elements: str
              sample: []
        filesystems:
          description: The mounted filesystems that hold data, each once.
          returned: always
          type: list
          elements: dict
          contains:
            mount:
              description: Its mount point; of several, the shortest.
              type: str
              sample: /mnt/nvme0
            mounts:
              description: All its mount points.
              type: list
              elements: str
              sample: [/mnt/nvme0]
            fstype:
              description: Its type.
              type: str
              sample: xfs
            source:
              description: What was mounted; of a shared filesystem that is its identity.
              type: str
              sample: /dev/nvme0n1p1
            devices:
              description: The block devices that it is on.
              type: list
              elements: str
              sample: [/dev/nvme0n1p1]
            uuid:
              description: Its UUID, as the mounted filesystem itself tells it.
              type: str
              sample: 6267f304-b57c-4599-b0cb-689e5ec2ad84
            options:
              description: Its mount options.
              type: list
              elements: str
              sample: [noatime, rw]
            kind:
              description: The word for the disk that it is on, or V(shared).
              type: str
              sample: NVMe SSD
            shared:
              description: Whether its type is one that several hosts can mount at once.
              type: bool
              sample: false
            disks:
              description: The disks at the bottom of it.
              type: list
              elements: str
              sample: [nvme0n1]
            system_disk:
              description: Whether it shares a disk with the operating system.
              type: bool
              sample: false
            answers:
              description: Whether it told its room.
              type: bool
              sample: true
            error:
              description: Why not, otherwise empty.
              type: str
              sample: ""
            size_bytes:
              description: Its size; null when it does not answer.
              type: int
              sample: 3838880382976
            used_bytes:
              description:
                - What is taken on it, as C(df) shows it. With what is available to users it is less than the size where
                  blocks are reserved for root. Null when it does not answer.
              type: int
              sample: 446812274688
            free_bytes:
              description: What is available to users; null when it does not answer.
              type: int
              sample: 3200123904000
            files:
              description: How many inodes it has, 0 when it makes them as it needs them; null when it does not answer.
              type: int
              sample: 375077952
            files_free:
              description: How many of them are free; null when it does not answer.
              type: int
              sample: 375000000
            unfit:
              description: Why a data location cannot be on it, otherwise empty.
              type: str
              sample: ""
            folder:
              description: The folder for a data location on it, unless another is wanted; empty on a shared filesystem.
              type: str
              sample: /mnt/nvme0/stowage
        recommended:
          description:
            - Where to put the data location. A local disk that is not the system disk, the fastest kind first, then the
              one with the most free space.
          returned: always
          type: dict
          contains:
            mount:
              description: The mount point of the filesystem; null when there is none to recommend.
              type: str
              sample: /mnt/nvme0
            folder:
              description: The folder on it; null when there is none to recommend.
              type: str
              sample: /mnt/nvme0/stowage
            kind:
              description: The word for its disk; null when there is none to recommend.
              type: str
              sample: NVMe SSD
            reason:
              description: Why this one, or why none.
              type: str
              sample: NVMe SSD, not the system disk; the fastest kind here
        addresses:
          description: The addresses of the host, except those of the loopback interface.
          returned: always
          type: list
          elements: dict
          contains:
            device:
              description: The interface.
              type: str
              sample: ib0
            family:
              description: V(ipv4) or V(ipv6).
              type: str
              sample: ipv4
            address:
              description: The address.
              type: str
              sample: 10.10.0.11
            prefix:
              description: The length of its network's prefix.
              type: int
              sample: 24
            scope:
              description: V(global), V(link) or V(host).
              type: str
              sample: global
            up:
              description: Whether its interface carries data, as far as the kernel knows.
              type: bool
              sample: true
        rdma:
          description: The ports of the RDMA devices.
          returned: always
          type: list
          elements: dict
          contains:
            device:
              description: The RDMA device.
              type: str
              sample: mlx5_0
            port:
              description: The number of the port.
              type: int
              sample: 1
            link_layer:
              description: V(InfiniBand), or V(Ethernet) for RoCE.
              type: str
              sample: InfiniBand
            state:
              description: The kernel's word for its state.
              type: str
              sample: ACTIVE
            active:
              description: Whether that is exactly V(ACTIVE).
              type: bool
              sample: true
            rate:
              description: Its speed, in the kernel's words.
              type: str
              sample: 400 Gb/sec (4X NDR)
            subnet_prefix:
              description:
                - The upper half of its first GID. The default, V(fe80:0000:0000:0000), does not prove one fabric.
              type: str
              sample: fe80:0000:0000:0000
            gids:
              description: Its GIDs.
              type: list
              elements: str
              sample: [fe80:0000:0000:0000:b83f:d203:00ab:cdef]
            netdevs:
              description: The network interfaces on it.
              type: list
              elements: str
              sample: [ib0]
            addresses:
              description: The addresses of those interfaces with global scope.
              type: list
              elements: str
              sample: [10.10.0.11]
        nfs:
          description: What the host has of NFS.
          returned: always
          type: dict
          contains:
            tools:
              description: The paths of C(exportfs), C(mount.nfs) and C(rpc.nfsd), null for one that is not installed.
              type: dict
              sample: {exportfs: null, mount.nfs: /usr/sbin/mount.nfs, rpc.nfsd: null}
            can_export:
              description: Whether the tools of a server are installed.
              type: bool
              sample: false
            can_mount:
              description: Whether the tools of a client are installed.
              type: bool
              sample: true
            listeners:
              description: What the kernel's NFS server listens on now; V(rdma 20049) is the proof that it serves RDMA.
              type: list
              elements: str
              sample: []
        layout:
          description: The storage layout, null when there is none.
          returned: always
          type: dict
          contains:
            root:
              description: Its root.
              type: str
              sample: /srv/stowage
            volume_root:
              description: Where external volumes are, null when there are none.
              type: str
              sample: /srv/volumes
            protected_paths:
              description: What no run may have mounted beside the layout's own.
              type: list
              elements: str
              sample: ["/var/lib/postgresql"]
            environment_prefix:
              description: What the names in its environment file begin with.
              type: str
              sample: STOWAGE_
            locations:
              description:
                - The locations by name, each with C(path), C(override), C(mount) (the mount point it is on, over
                  symbolic links as far as a shared filesystem), C(mounted) (whether the mount that it requires is
                  there, null when it requires none), what the daemon last found (C(available), and C(reason) why it
                  is not, or why it could not be measured to the end), and its last complete measurement (C(bytes),
                  C(files), C(complete), C(measured)). What is not known yet is null.
              type: dict
              sample:
                runs:
                  path: /mnt/nvme1/runs
                  override: true
                  mount: /mnt/nvme1
                  mounted: true
                  available: true
                  reason: ""
                  bytes: 120000000000
                  files: 40123
                  complete: true
                  measured: 1764419990.5
        data_location:
          description: The data location, null when none has been chosen.
          returned: always
          type: dict
          contains:
            path:
              description: The folder.
              type: str
              sample: /mnt/nvme0/stowage
            max_bytes:
              description: The most that copies may take, 0 when there is no limit but the disk.
              type: int
              sample: 2000000000000
            host:
              description: The name of the host in the inventory when it was chosen.
              type: str
              sample: gpu-01
            identity:
              description: Tells it from another one that was chosen at another time.
              type: str
              sample: 0b6f7f3e-7d0e-4a55-a70c-2f3b9b1a9d8e
            filesystem:
              description: The type, UUID and source of the filesystem that it was chosen on.
              type: dict
              sample: {fstype: xfs, uuid: 6267f304-b57c-4599-b0cb-689e5ec2ad84, source: /dev/nvme0n1p1}
            available:
              description: Whether that filesystem is mounted there and the folder is Stowage's.
              type: bool
              sample: true
            size_bytes:
              description: The size of the filesystem; null when it is not available.
              type: int
              sample: 3838880382976
            free_bytes:
              description: What is available on it; null when it is not available.
              type: int
              sample: 3200123904000
            used_bytes:
              description: What all copies together have allocated; null while one of them has not been measured.
              type: int
              sample: 450000000000
            reserved_bytes:
              description:
                - What the fills under way are still going to write, as far as the sizes of their drives are declared.
                  Null when it cannot be read.
              type: int
              sample: 20000000000
            strangers:
              description:
                - Paths of what is where copies are and is none of this host's. Null when it cannot be looked at.
              type: list
              elements: str
              sample: ["/mnt/nvme0/stowage/drives/lost+found"]
        former_data_locations:
          description:
            - Data locations that the host had before and that may still hold copies, each with C(path) and C(left).
          returned: always
          type: list
          elements: dict
          sample: []
        drives:
          description:
            - The drives that the host was told of, by workspace. What is known of a source (C(available), C(answers),
              and its last complete measurement) is null for a source that this host does not measure, and for copies
              of placed drives, which are listed apart.
            - C(used_by) are the live workers on this host that use the drive, as run and worker.
          returned: always
          type: dict
          sample:
            ml:
              - name: hf-cache
                identity: 7a0b9c1d-5e6f-4a7b-8c9d-0e1f2a3b4c5d
                state: present
                evictable: true
                size_hint_bytes: 107374182400
                used_by: [finetune-3/w0]
                sources:
                  - node_scope: placed
                    node: ""
                    path: ""
                    available: null
                    answers: null
                    bytes: null
                    files: null
                    complete: null
                    measured: null
        copies:
          description:
            - The copies by name, and those that only a record remembers. C(aside) is whether an eviction has set one
              aside, where nobody can use it; it is not C(present) then. Both are null when the data location cannot be
              looked at. C(bytes) is the size of the files and C(allocated) what they take on the disk, both null until
              they have been measured.
          returned: always
          type: dict
          sample:
            ml.hf-cache:
              present: true
              aside: false
              workspace: ml
              drive: hf-cache
              identity: 7a0b9c1d-5e6f-4a7b-8c9d-0e1f2a3b4c5d
              bytes: 107000000000
              allocated: 107000832000
              files: 812
              complete: true
              measured: 1764419990.5
              last_used: 1764410000.0
        fills:
          description:
            - The fills of copies, by copy, that are under way (V(filling)), or have failed since the host was started
              (V(failed)).
          returned: always
          type: dict
          sample:
            ml.llama:
              state: filling
              failures: 1
              message: "exit status 1: curl: (28) Operation timed out"
              since: 1764419700.5
              written_bytes: 87000000000
              reserved_bytes: 20000000000
        accounts:
          description:
            - Whose the space is, by the last complete measurement of each location; null while nothing was measured,
              or where the layout is measured by another host.
            - C(tracked) is the size of the files by kind; null where nothing of a kind was measured. C(complete) is
              false while C(unavailable) says what is not in it as it is now, and C(measured) the time since when all of
              it is known, null while something never was.
            - C(users) and C(teams) are the 50 that have most, and all others whose quota is exceeded; C(count) is how
              many there are. C(quota) is null for whoever has none, C(exceeded_since) while it is kept. C(allocated) is
              what the files take on disks, and C(missing) why the figures of that one are not complete.
          returned: always
          type: dict
          sample:
            measured: 1764419990.5
            complete: true
            unavailable: []
            tracked: {runs: 812000000000, reflow: 0, caches: 107000000000, packages: 0, state: 4096, other: 0}
            tracked_bytes: 919000004096
            users: {ann: {bytes: 812000000000, allocated: 812100000000, runs: 12, quota: 800000000000,
                          exceeded_since: 1764419995.0, missing: ""}}
            teams: {vision: {bytes: 812000000000, allocated: 812100000000, runs: 12, quota: null,
                             exceeded_since: null, missing: ""}}
            count: {users: 1, teams: 1}
        network_mounts:
          description:
            - The sources of drives on other machines that are mounted here, as recorded. C(state) is V(Pending),
              V(Exported), V(Bound), V(Releasing), V(Released) or V(Failed), with C(reason) where something is wrong,
              since C(time). C(message) says so when it was mounted over TCP because RDMA did not work.
            - What the daemon last found out, null while that is not known, is C(answers), whether its server answers,
              and C(available), whether it is mounted from that source and answers.
          returned: always
          type: list
          elements: dict
          sample:
            - workspace: ml
              drive: imagenet
              source: 0
              node: gpu-01
              state: Bound
              reason: ""
              message: ""
              time: 1764419700.5
              path: /var/lib/stowage/datavolumes/mounts/ml.imagenet-0
              proto: rdma
              read_only: true
              answers: true
              available: true
        network_exports:
          description:
            - The sources of drives that this host exports to other machines, as recorded, each to one address.
              C(state) is V(Exported), V(Released) or V(Failed), with C(reason), since C(time).
          returned: always
          type: list
          elements: dict
          sample:
            - workspace: ml
              drive: imagenet
              source: 0
              client: gpu-02
              client_address: 10.10.0.12
              path: /data/imagenet
              read_only: true
              fsid: 5c0f6f0e-4f0b-5d0e-9d5b-0f3f4c8a1e2d
              state: Exported
              reason: ""
              time: 1764419699.25
              serial: 1c0f9a52f0b64f6f8f0f6a3b8f1f2a77
              renewed: 1764419699.25
        relocations:
          description:
            - The moves of locations of the layout, the last one of each. C(stage) is what was done last, C(doing) what
              was being done when that was recorded. C(standing) is the stage that is really reached by what is mounted
              at the old path, or C(lost) where the new directory is to be mounted there and is not, or C(foreign)
              where it is mounted there and is not to be; null when that is not known. C(overrides) is what an inventory
              has to have once it is switched. The list is null when a record of them cannot be read; C(problems) says
              which.
          returned: always
          type: list
          elements: dict
          sample:
            - location: runs
              path: /srv/stowage/runs
              to: /mnt/nvme1/runs
              stage: finished
              doing: ""
              standing: finished
              since: 1764419699.25
              overrides: {runs: {path: /mnt/nvme1/runs, mount_point: /mnt/nvme1}}
        tiers:
          description:
            - The KV-cache tiers whose directories are claimed here, also when no group names this host any more. What
              was declared is null when that is not known any more. The list is null, which is not empty, when a record
              of them cannot be read; C(problems) says which.
            - C(owner), C(group) and C(mode) are what the directory has now. C(claimed) is whether it bears the mark of
              the tier. All four are null when it cannot be seen.
            - C(survey) is what was in the directory when it was claimed, null when nobody looked. In it C(was_empty) is
              null when that is not known, and C(reason) says why.
            - C(allocated) and what follows is what the daemon last found out, null where it has not. C(written_bytes)
              and C(keys) are those of complete buckets. C(filling) is whether less is free than its filesystem's tiers
              may still write. C(settings_differ) is whether a process of the store has other settings than declared,
              C(writable) whether all of them can write to the directory by its owner, group and mode.
          returned: always
          type: list
          elements: dict
          sample:
            - backend: chat
              position: 0
              path: /var/lib/kvcache
              identity: 0d1b6f0e-9a5b-4b43-8f3e-5f6f0b0b6a10
              hosts: null
              store: mooncake
              capacity: 4398046511104
              key_limit: 10000000
              eviction:
                enabled: true
                policy: LRU
                watermark: {high: 90, low: 80}
              clean_after_delete: false
              owner: "65532"
              group: root
              mode: "0750"
              claimed: true
              survey: {entries: 0, time: 1764419699.25, reason: "", was_empty: true}
              allocated: 67141632
              bytes: 67111620
              files: 8
              complete: true
              measured: 1764419699.25
              buckets: 4
              written_bytes: 67109760
              keys: 64
              full: false
              unaccounted_bytes: 107374182
              filling: false
              settings_differ: false
              writable: true
        volumes:
          description:
            - The external volumes that are registered on this host. C(available) is whether the daemon last found it
              there, null where it has not looked. C(grants) is how many grants it has, and C(used_by) are the live
              workers on this host that have something of it, as run and worker.
          returned: always
          type: list
          elements: dict
          sample:
            - name: models
              path: /srv/volumes/models
              available: true
              grants: 2
              used_by: [finetune-3/w0]
        leases:
          description:
            - The uses of drives and volumes by workers. C(copy) is empty for a drive that has no copies. Of a volume,
              C(volume) is its name, C(run_of) and C(run_team) are the run that its folder C(sub_path) is granted to and
              the team of that, and C(workspace) and C(drive) are empty; of a drive the first three are. C(left_s) is
              for how many seconds it is still reserved. C(ended) says why a lease holds nothing any more, empty for a
              live one.
          returned: always
          type: list
          elements: dict
          sample:
            - run: finetune-3
              number: 1
              worker: w0
              workspace: ml
              drive: hf-cache
              source: 0
              source_path: ""
              copy: ml.hf-cache
              sub_path: ""
              mode: ReadWrite
              target: /root/.cache/huggingface
              volume: ""
              run_of: ""
              run_team: ""
              state: leased
              left_s: 0.0
              created: 1764410000.0
              path: /run/stowage/pins/finetune-3/1
              ended: ""
        eviction:
          description:
            - What the daemon last planned to remove, null when it has not looked since the host was started. C(mode) is
              its setting C(evict). C(plan) are the copies that are to go, each with C(copy), C(reason) (V(full),
              V(limit), V(deleted), V(expired)) and C(allocated); C(plan_made) is when that was planned, null when
              nothing is. C(blocked), C(reason) and C(why) say that copies have to go and cannot; C(reason) is V(short)
              (none or too few may go), V(stopped) (removing did not help), V(failed) (it could not be done) or empty.
              C(waiting) says of each copy of a deleted drive why it is still there. C(aside) are the copies that an
              eviction that was cut short has left aside, each with C(copy), C(location) and C(why). C(removed) counts
              the copies removed since the host was started, by reason.
          returned: always
          type: dict
          sample:
            mode: plan
            plan:
              - copy: ml.hf-cache
                reason: full
                allocated: 107000000000
            plan_made: 1764419998.5
            blocked: false
            reason: ""
            why: ""
            waiting: {}
            aside: []
            removed: {full: 3}
            removed_bytes: 320000000000
        events:
          description:
            - The last 20 events of the host, the oldest first, each with C(time), C(object), C(reason) and C(message).
              Null when they cannot be read.
          returned: always
          type: list
          elements: dict
          sample:
            - time: 1764419800.5
              object: drive/ml/hf-cache
              reason: Evicted
              message: "Copy removed from gpu-01: evicted: the disk it is on is nearly full"
        gate:
          description:
            - Whether the host takes new jobs (C(open)), and what holds all of them (C(holds)), as the module
              M(stowage.host.gate_info) returns it without a user and a team. Without a daemon that judges, it is held.
          returned: always
          type: dict
          sample:
            open: false
            holds:
              - reason: watermark
                text: "filesystem /mnt/nvme0 is 93 % full, the watermark is 90 %"
                user: ""
                team: ""
            unknown: []
            judged: 1764419995.5
            stale: false
            watermark_pct: 90.0
        daemon:
          description:
            - Whether the daemon is installed and runs, and how long ago it ended a cycle (null when it has not). One
              whose last three cycles did not come does not run.
          returned: always
          type: dict
          sample: {installed: true, running: true, last_cycle_age_s: 4.2}
        problems:
          description: What could not be read or is not as it was declared, one line each.
          returned: always
          type: list
          elements: str
          sample: []
        compact:
          description: What placement needs of all this.
          returned: always
          type: dict
          contains:
            gathered:
              description: When the facts were gathered.
              type: float
              sample: 1764420000.25
            labels:
              description: The labels that were given.
              type: dict
              sample: {site: eu-west, rack: r12}
            data_location:
              description: The path and the room of the data location, null when none has been chosen.
              type: dict
              sample:
                path: /mnt/nvme0/stowage
                available: true
                size_bytes: 3838880382976
                free_bytes: 3200123904000
                max_bytes: 2000000000000
                used_bytes: 450000000000
                reserved_bytes: 20000000000
            copies:
              description:
                - The size of each copy that a run can use, by name; null until it has been measured. Copies of drives
                  that were deleted, or made again since, are left out.
              type: dict
              sample: {ml.hf-cache: 107000000000}
            shared:
              description: The shared filesystems.
              type: list
              elements: dict
              sample:
                - mount: /lustre
                  mounts: [/lustre, /home]
                  fstype: lustre
                  source: "10.0.0.1@o2ib:/lustre"
                  answers: true
            addresses:
              description: The addresses with global scope, of interfaces that are up.
              type: list
              elements: str
              sample: [192.0.2.11, 10.10.0.11]
            rdma:
              description: The RDMA ports.
              type: list
              elements: dict
              sample:
                - {link_layer: InfiniBand, subnet_prefix: "fe80:0000:0000:0000", active: true, addresses: [10.10.0.11]}
            nfs:
              description: Whether the host can export and mount.
              type: dict
              sample: {can_export: false, can_mount: true}
            used_by:
              description: The live workers on this host by the drive that they use, as run and worker.
              type: dict
              sample: {ml/hf-cache: [finetune-3/w0]}
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils.errors import StowageError
from ansible_collections.stowage.host.plugins.module_utils.facts.report import gather
from ansible_collections.stowage.host.plugins.module_utils.places import Places


def main() -> None:
    module = AnsibleModule(argument_spec={"labels": {"type": "dict", "default": {}}}, supports_check_mode=True)
    if os.geteuid() != 0:
        module.warn("not run as root: the data location, its copies and owner marks cannot be read; use become")
    try:
        facts = gather(Places(), {name: str(value) for name, value in module.params["labels"].items()})
    except (StowageError, OSError) as error:
        module.fail_json(msg=f"the storage of this host cannot be read: {error}")
    for problem in facts["problems"]:
        module.warn(problem)
    module.exit_json(changed=False, ansible_facts={"stowage_storage": facts})


if __name__ == "__main__":
    main()

"""How cores are counted: those that this process is bound to, and the CPU quota of its container, as the files of control groups
tell it; these files are made up here."""

from math import inf

import pytest

from pdla.array import cores
from pdla.comm.threads import run

SYSTEM = ["27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard", "23 27 0:22 / /sys rw shared:7 - sysfs sysfs rw"]


def v2(mount, root="/"):
    return f"41 31 0:38 {root} {mount} rw,relatime shared:9 - cgroup2 cgroup2 rw"


def v1(mount, root="/", controllers="cpu,cpuacct"):
    return f"32 31 0:29 {root} {mount} rw,relatime - cgroup cgroup rw,{controllers}"


def told(folder, groups, mounts, limits):
    """The quota where /proc/self and the control groups' files are these."""
    for path, text in limits.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"{text}\n")
    (folder / "cgroup").write_text("\n".join(groups) + "\n")
    (folder / "mountinfo").write_text("\n".join([*SYSTEM, *mounts]) + "\n")
    return cores.quota(str(folder))


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({"all/cpu.max": "250000 100000"}, 2.5),
        ({"all/cpu.max": "max 100000"}, inf),
        ({"all/a/b/cpu.max": "300000 100000", "all/a/cpu.max": "80000 40000", "all/cpu.max": "max 100000"}, 2),
        ({"all/a/b/cpu.max": "50000 100000", "all/a/cpu.max": "400000 100000"}, 0.5),
        ({"all/other/cpu.max": "100000 100000"}, inf),
        ({"all/a/cpu.max": "unheard of"}, inf),
        ({}, inf),
    ],
)
def test_the_least_quota_of_all_groups_around_it_counts(limits, quota, tmp_path):
    assert told(tmp_path, ["0::/a/b"], [v2(tmp_path / "all")], limits) == quota


@pytest.mark.parametrize(
    ("quotas", "cpus"), [({"": (-1, 100000)}, inf), ({"": (150000, 50000)}, 3), ({"a/": (-1, 100000), "": (100000, 100000)}, 1)]
)
def test_version_1_says_it_in_two_files_and_has_other_controllers_beside(quotas, cpus, tmp_path):
    limits = {"memory/cpu.cfs_quota_us": 1, "memory/cpu.cfs_period_us": 100000}
    for at, (quota, period) in quotas.items():
        limits |= {f"cpu/{at}cpu.cfs_quota_us": quota, f"cpu/{at}cpu.cfs_period_us": period}
    mounts = [v1(tmp_path / "memory", controllers="memory"), v1(tmp_path / "cpu")]
    assert told(tmp_path, ["4:memory:/", "2:cpuacct,cpu:/a", "0::/"], mounts, limits) == cpus


@pytest.mark.parametrize("place", ["/docker/abc", "/docker/abc/inner", "/elsewhere", "/../.."])
def test_a_container_that_sees_only_its_own_groups_finds_them(place, tmp_path):
    limits = {"all/cpu.max": "200000 100000", "all/inner/cpu.max": "100000 100000"}
    assert told(tmp_path, [f"0::{place}"], [v2(tmp_path / "all", "/docker/abc")], limits) == (1 if "inner" in place else 2)


def test_of_two_versions_at_once_the_lower_quota_counts(tmp_path):
    limits = {"all/cpu.max": "300000 100000", "cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}
    assert told(tmp_path, ["1:cpu:/", "0::/"], [v2(tmp_path / "all"), v1(tmp_path / "cpu", controllers="cpu")], limits) == 2


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert cores.quota(str(tmp_path / "none")) == inf


@pytest.mark.parametrize(
    ("bound", "all_cores", "quota", "ranks", "own"),
    [
        (64, 64, inf, 4, 16), (64, 64, 8, 4, 2), (64, 64, 2.5, 1, 2), (64, 64, 2, 4, 1), (64, 64, 0.5, 1, 1),  # bound to no cores
        (4, 64, inf, 16, 4), (4, 64, 32, 16, 2), (4, 64, 100, 16, 4),  # each to 4 of them
    ],
)
def test_ranks_share_what_the_quota_leaves_them(bound, all_cores, quota, ranks, own, monkeypatch):
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: range(bound))
    monkeypatch.setattr(cores.os, "cpu_count", lambda: all_cores)
    monkeypatch.setattr(cores, "quota", lambda: quota)
    assert cores.share(ranks) == own
    assert cores.usable() == max(1, min(bound, int(min(quota, 999)))) and cores.usable(3) == max(1, int(min(quota, 3)))


def test_a_rank_that_is_the_only_thread_has_no_more_blas_threads_than_the_quota(monkeypatch):
    from threadpoolctl import threadpool_info

    monkeypatch.setattr(cores, "quota", lambda: 1.0)
    threads = run(1, lambda comm: {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"})
    assert threads == [{1}]

"""Where the limits of this process's control group stand, versions 1 and 2.

A limit of any parent holds too, so every folder from the group up to its root counts.
"""

from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


def cgroup_folders(controller: str, proc: Path = PROC, cgroup: Path = CGROUP) -> list[Path]:
    """Folders with the limits of `controller` (memory, cpu), innermost first.

    Inside a container the kernel may show the group's path of the host, which is not there; the
    roots then hold the container's own limits.
    """
    folders: list[Path] = []
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroup / controller if controllers else cgroup
        folder = root / path.lstrip("/")
        folders += [folder, *(parent for parent in folder.parents if root in parent.parents), root]
    return list(dict.fromkeys([*folders, cgroup, cgroup / controller]))

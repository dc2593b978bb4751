"""The guest in which real NFSv4 is served and mounted: one initramfs of packages.

`image(machine)` makes that initramfs for one of `nfs_machine`, from Debian's packages, which it
fetches once into the machine's cache. Nothing is installed here. Raises `Missing`, and why.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

from soak.nfs_machine import Missing, libraries, said

ROOM = Path(__file__).parents[2]
PACKAGES = """
    busybox-static kmod nfs-common nfs-kernel-server rpcbind libwrap0 libevent-core-2.1-7
    libtirpc3 libnfsidmap1 libkeyutils1
""".split()
TOOLS = "mount.nfs rpc.nfsd rpc.mountd exportfs".split()
NETCONFIG = "tcp tpi_cots_ord v inet tcp - -\nudp tpi_clts v inet udp - -\n"
SMALL = {
    "etc/netconfig": NETCONFIG,
    "etc/passwd": "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/protocols": "tcp 6 TCP\nudp 17 UDP\n",
    "etc/services": "sunrpc 111/tcp\nsunrpc 111/udp\nnfs 2049/tcp\n",
    "etc/nsswitch.conf": "passwd: files\nhosts: files\nprotocols: files\nservices: files\n",
    "etc/exports": "/srv *(rw,sync,no_root_squash,no_subtree_check,fsid=0,insecure)\n",
}
FOLDERS = """proc sys dev tmp run srv a b bin sbin etc var/lib/nfs/rpc_pipefs var/lib/nfs/v4recovery
    var/lib/nfs/sm usr/bin root""".split()


def image(machine, init="nfs_init.sh"):
    """The initramfs for a machine, made anew. `init`: its first process. Raises Missing."""
    cache = machine.root.parent
    done = cache / f"fetched-{machine.name}"
    if not done.exists():
        fetch(cache, machine)
        done.touch()
    made = cache / f"initramfs-{machine.name}"
    made.write_bytes(archive(machine, init))
    return made


def fetch(cache, machine):
    """Download and unpack the packages; none of their scripts is run."""
    if not shutil.which("apt-get"):
        raise Missing("needs apt-get to fetch a kernel")
    debs = cache / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    said("apt-get", "download", "-qq", *PACKAGES, *machine.packages(), cwd=debs)
    for deb in debs.glob("*.deb"):
        said("dpkg", "-x", deb, machine.root)


class Archive:
    """A cpio archive of the form that the kernel unpacks (newc)."""

    def __init__(self):
        self.out, self.number, self.known = io.BytesIO(), 0, set()

    def entry(self, name, mode, data=b""):
        name = name.strip("/")
        if name in self.known:
            return
        if "/" in name:
            self.entry(name.rpartition("/")[0], stat.S_IFDIR | 0o755)
        self.known.add(name)
        self.number += 1
        fields = [self.number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        self.out.write(b"070701" + b"".join(b"%08X" % field for field in fields))
        self.padded(name.encode() + b"\0", 110)
        self.padded(data, 0)

    def padded(self, data, before):
        self.out.write(data + b"\0" * (-(len(data) + before) % 4))

    def file(self, source, name):
        self.entry(name, stat.S_IFREG | 0o755, Path(source).read_bytes())

    def tree(self, source, name, leave_out=()):
        for path in sorted(Path(source).rglob("*")):
            parts = path.relative_to(source).parts
            if path.is_file() and not {"__pycache__", *leave_out} & {*parts}:
                self.file(path, f"{name}/{'/'.join(parts)}")

    def program(self, source, name, env):
        """With the libraries that it needs."""
        self.file(source, name)
        for line in subprocess.run(
            ["ldd", source], capture_output=True, text=True, check=False, env=env
        ).stdout.splitlines():
            found = [word for word in line.split() if word.startswith("/")]
            if found:
                base = os.path.basename(found[0])
                self.file(
                    found[0],
                    f"lib64/{base}" if "ld-linux" in base else f"lib/x86_64-linux-gnu/{base}",
                )


def archive(machine, init):
    """The initramfs: busybox, this Python, the NFS tools and modules, lifehold and its tests."""
    root = machine.root
    made, env = Archive(), libraries(root)
    for folder in FOLDERS:
        made.entry(folder, stat.S_IFDIR | 0o755)
    for name, text in SMALL.items():
        made.entry(name, stat.S_IFREG | 0o644, text.encode())
    made.entry("dev/console", stat.S_IFCHR | 0o600)
    made.program(root / "bin/busybox", "bin/busybox", env)
    made.program(shutil.which("unshare"), "usr/bin/unshare", os.environ)
    for tool in TOOLS:
        found = next(
            (each for each in (root / "sbin" / tool, root / "usr/sbin" / tool) if each.exists()),
            None,
        )
        if found is None:
            raise Missing(f"there is no {tool} among the packages")
        made.program(found, f"sbin/{tool}", env)
    python(made)
    modules(made, machine)
    made.tree(ROOM / "src", "room/src")
    made.tree(ROOM / "tests", "room/tests")
    made.file(Path(__file__).with_name(init), "init")
    made.entry("TRAILER!!!", 0)
    return made.out.getvalue()


def python(made):
    """The interpreter that runs us, where it lies here."""
    program = os.path.realpath(os.path.join(sys.base_prefix, "bin", "python3"))
    made.program(program, program, os.environ)
    made.entry("usr/bin/python3", stat.S_IFLNK | 0o777, program.encode())
    library = sysconfig.get_path(
        "stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}
    )
    made.tree(library, library, ("test", "site-packages", "idlelib", "lib2to3", "ensurepip",
                                 "pydoc_data", "tkinter", "turtledemo"))  # fmt: skip
    for extension in Path(library, "lib-dynload").glob("*.so"):
        made.program(extension, str(extension), os.environ)


def modules(made, machine):
    """The modules for NFS, and in which order they go in."""
    folder, needs = machine.modules(), {}
    at = machine.root / "lib/modules" / folder.name  # where depmod looks
    if not at.exists():
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(folder.resolve())
    said("depmod", "-b", machine.root.resolve(), folder.name,
         executable=machine.root / "bin/kmod", env=libraries(machine.root))  # fmt: skip
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, after = line.partition(":")
        needs[Path(path).name.partition(".")[0].replace("-", "_")] = path, after.split()
    order = []

    def add(name):
        path, after = needs[name]
        for each in after:
            add(Path(each).name.partition(".")[0].replace("-", "_"))
        if path not in order:
            order.append(path)

    for name in machine.needed:
        add(name)
    for path in order:
        made.file(folder / path, f"modules/{Path(path).name}")
    text = "".join(f"{Path(path).name}\n" for path in order)
    made.entry("modules/order", stat.S_IFREG | 0o644, text.encode())

"""The machines that a guest may run on: a kernel as a process (User Mode Linux), or qemu.

`choose(cache, name)` gives one of them; nothing is installed here: the packages are unpacked below
`cache`. User Mode Linux needs neither a virtual processor nor emulation, and its commands run at
the speed of this machine; `tcg` runs wherever qemu does, some thirty times slower; `kvm` needs a
/dev/kvm that runs any kernel, which those of some rented machines do not.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

SHIM = Path(__file__).with_name("nfs_machine_fp.c")
QEMU = """
    qemu-system-common qemu-system-data qemu-system-x86 seabios ipxe-qemu libaio1 libcapstone4
    libdaxctl1 libfdt1 libibverbs1 libndctl6 libnl-3-200 libnl-route-3-200 libpmem1 librdmacm1
    libslirp0 liburing2 libvdeplug2
""".split()


class Missing(Exception):
    """The guest cannot be had here, and why."""


def said(*words, **options):
    """What a command says on stdout. Raises Missing when it fails."""
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=300, **options
    )  # fmt: skip
    if done.returncode:
        raise Missing(f"{words[0]} {words[1]}: {(done.stderr or done.stdout).strip()[-200:]}")
    return done.stdout


def libraries(root):
    """The environment in which the programs of those packages find what they need."""
    folders = f"{root}/usr/lib/x86_64-linux-gnu:{root}/lib/x86_64-linux-gnu"
    return os.environ | {"LD_LIBRARY_PATH": folders}


class Uml:
    """A kernel whose system calls are another process' work: ptrace(2) is all it needs.

    `slow`: how much longer than on a usual machine a step may take.
    """

    name, slow, needed = "uml", 3, ("nfsd", "nfsv4")

    def __init__(self, cache):
        self.cache, self.root = Path(cache), Path(cache) / "root"

    def packages(self):
        return ["user-mode-linux"]

    def modules(self):
        """The folder of its modules, by their version."""
        return max((self.root / "usr/lib/uml/modules").glob("*"))

    def command(self, initramfs, order):
        shim = self.cache / "fp.so"
        compiler = shutil.which("cc")
        if compiler is None:
            raise Missing("needs a C compiler (or --machine tcg)")
        said(compiler, "-O2", "-shared", "-fPIC", "-o", shim, SHIM)
        words = [
            self.root / "usr/bin/linux.uml", "mem=1024M", f"initrd={initramfs}", "rdinit=/init",
            "con=null", "con0=null,fd:1", "ssl=null", "quiet", "panic=-1", f"lifehold={order}",
        ]  # fmt: skip
        return words, os.environ | {"LD_PRELOAD": str(shim), "TMPDIR": "/dev/shm"}


class Qemu:
    """`accelerator`: tcg (emulation) or kvm."""

    needed = ("nfsd", "nfsv4", "virtio_rng")

    def __init__(self, cache, accelerator):
        self.root, self.name = Path(cache) / "root", accelerator
        self.slow = 8 if accelerator == "tcg" else 2

    def packages(self):
        found = said("apt-cache", "depends", "linux-image-cloud-amd64")
        kernel = [line.split()[1] for line in found.splitlines() if "Depends: linux-image" in line]
        return [*QEMU, *kernel]

    def modules(self):
        return max((self.root / "lib/modules").glob("*"))

    def command(self, initramfs, order):
        root = self.root
        words = [root / "usr/bin/qemu-system-x86_64"]
        for folder in ("usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"):
            words += ["-L", root / folder]
        how = {"tcg": ["-accel", "tcg,thread=multi", "-cpu", "max"],
               "kvm": ["-accel", "kvm", "-cpu", "host"]}[self.name]  # fmt: skip
        words += [
            *how, "-m", "1024", "-smp", "2", "-display", "none", "-no-reboot", "-nodefaults",
            "-serial", "stdio", "-kernel", max((root / "boot").glob("vmlinuz-*")),
            "-initrd", initramfs, "-append",
            f"console=ttyS0 quiet panic=-1 rdinit=/init lifehold={order}",
        ]  # fmt: skip
        return words, libraries(root)


MACHINES = {"uml": Uml, "tcg": lambda cache: Qemu(cache, "tcg"),
            "kvm": lambda cache: Qemu(cache, "kvm")}  # fmt: skip


class Running:
    """A guest under way; `lines()` is what it says. Its processes end with the block."""

    def __init__(self, machine, initramfs, order):
        words, env = machine.command(initramfs, order)
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", env=env, start_new_session=True,
        )  # fmt: skip

    def lines(self):
        return self._process.stdout

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:  # else its number may be somebody else's by now
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

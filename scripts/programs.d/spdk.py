"""SPDK's NVMe-oF target and initiator (--spdk DIR, the folder in which it was built)."""

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time

from cases import case
from field import ADDRESS, Failed, Skipped, connected, hugepages_mb

NQN = "nqn.2016-06.io.spdk:cnode1"
# Memory of each program, in MiB.
MEMORY = 256
# Size of the target's disk, in MiB.
DISK = 64


class Spdk:
    """SPDK's programs over one network.

    `runners`: the words that run a program, by the program's name. None: `urnic run`, without options.
    """

    def __init__(self, field, transport="RDMA", runners=None):
        self.field, self.folder = field, field.given["spdk"]
        self.transport, self.runners = transport, runners
        if not self.folder:
            raise Skipped("no --spdk DIR, the folder in which SPDK was built")
        self.script = os.path.join(self.folder, "scripts/rpc.py")
        if not os.path.exists(self.script):
            raise Skipped(f"{self.script} is missing: --spdk takes the folder in which SPDK was built")
        if hugepages_mb() < 2 * MEMORY + 64:
            raise Skipped(f"fewer than {2 * MEMORY + 64} MiB of hugepages are free")
        self.environment = {"LD_LIBRARY_PATH": os.path.join(self.folder, "build/lib")}
        self.socket = field.path("rpc.sock")
        self.where = f"trtype:{transport} adrfam:IPv4 traddr:{ADDRESS} trsvcid:4420"

    def program(self, name):
        for place in ("build/bin", "build/examples"):
            path = os.path.join(self.folder, place, name)
            if os.access(path, os.X_OK):
                return path
        raise Skipped(f"{self.folder}/build/bin/{name} is missing: build SPDK's applications, with its option --with-rdma")

    def start(self, name, arguments, memory="-s"):
        """Starts a program. `memory` is its option for the size of its memory; None: the memory grows as needed."""
        words = [self.program(name), *(arguments.split() if isinstance(arguments, str) else arguments)]
        words += [memory, str(MEMORY)] if memory else []
        if self.runners:
            words = [*self.runners[name], *words]
        return self.field.start(words, plain=bool(self.runners), environment=self.environment)

    def rpc(self, words, good=True):
        done = subprocess.run([sys.executable, self.script, "-s", self.socket, *words.split()], capture_output=True, text=True)
        if good and done.returncode:
            raise Failed(f"rpc.py {words}: {done.stderr}{done.stdout}")
        return done.returncode == 0

    def serve(self, cores="0x1", memory="-s", more=""):
        """Starts a target that serves a disk in memory, with the target's own defaults. `more`: further options."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)
        target = self.start("nvmf_tgt", f"-m {cores} -r {self.socket} {more}", memory)
        target.wait_for(lambda: os.path.exists(self.socket) and self.rpc("spdk_get_version", False), "takes orders")
        for words in (
            f"nvmf_create_transport -t {self.transport}",
            f"bdev_malloc_create -b Malloc0 {DISK} 512",
            f"nvmf_create_subsystem {NQN} -a -s SPDK01",
            f"nvmf_subsystem_add_ns {NQN} Malloc0",
            f"nvmf_subsystem_add_listener {NQN} -t {self.transport} -a {ADDRESS} -s 4420",
        ):
            self.rpc(words)
        return target

    def perf(self, depth, size, work, seconds=1, more=""):
        words = ["-q", str(depth), "-o", str(size), *work.split(), "-t", str(seconds), *more.split(), "-r", self.where]
        return self.start("spdk_nvme_perf", ["-c", "0x2", *words])

    def measured(self, *how):
        """Measures; returns the operations per second, the MiB/s and the average latency in us."""
        said = self.perf(*how).ends(120)
        total = re.search(r"^Total +:" + r" +([\d.]+)" * 3, said, re.M)
        if not total or float(total[1]) == 0 or "error" in said.lower():
            raise Failed(f"{how}: {said[-800:]}")
        return tuple(map(float, total.groups()))

    def identify(self, patience=60):
        """Connects, sends some commands, and disconnects."""
        said = self.start("spdk_nvme_identify", ["-r", f"{self.where} subnqn:{NQN}"], "-d").ends(patience)
        if "SPDK01" not in said:
            raise Failed(said[-800:])


WORK = {"read": "-w randread", "write": "-w randwrite", "mixed": "-w randrw -M 50"}


@case("SPDK: nvmf_tgt and spdk_nvme_perf, 512 B to 1 MiB, depths 1 to 256", quick=True)
def performance(field, long):
    spdk = Spdk(field)
    target = spdk.serve()
    sizes, depths = ((512, 4096, 8192, 65536, 1 << 20), (1, 16, 256)) if long else ((4096, 131072), (1, 32))
    for size in sizes:
        for depth in depths:
            for work in WORK if long else ("mixed",):
                spdk.measured(depth, size, WORK[work])
    target.stop()


@case("SPDK: two reactors; 16 queue pairs (--long: 64); memory that grows")
def reactors(field, long):
    spdk = Spdk(field)
    target = spdk.serve("0x3")
    spdk.measured(32, 4096, WORK["mixed"])
    target.stop()
    target = spdk.serve()
    # The program takes a second to disconnect each queue pair.
    spdk.measured(16, 4096, WORK["mixed"], 1, "-P 64" if long else "-P 16")
    target.stop()
    target = spdk.serve(memory=None)
    spdk.measured(64, 65536, WORK["mixed"])
    target.stop()


@case("SPDK: bdevperf, verified")
def bdevperf(field, long):
    spdk = Spdk(field)
    target = spdk.serve()
    attach = {"name": "Nvme0", "trtype": "RDMA", "adrfam": "IPv4", "traddr": ADDRESS, "trsvcid": "4420", "subnqn": NQN}
    settings = {"subsystems": [{"subsystem": "bdev", "config": [{"method": "bdev_nvme_attach_controller", "params": attach}]}]}
    path = field.path("bdevperf.json")
    with open(path, "w") as file:
        json.dump(settings, file)
    seconds = 300 if long else 5
    said = spdk.start("bdevperf", f"-m 0x2 --json {path} -q 32 -o 65536 -w verify -t {seconds}").ends(seconds + 60)
    if "Total" not in said or re.search(r"mismatch|Verification failed|ERROR", said):
        raise Failed(said[-1500:])
    target.stop()


@case("SPDK: connect and disconnect")
def connects(field, long):
    spdk = Spdk(field)
    target = spdk.serve()
    for _ in range(500 if long else 10):
        spdk.identify()
    target.stop()


@case("SPDK: either end killed, and served again")
def kills(field, long):
    spdk, chance = Spdk(field), random.Random(1)
    target = spdk.serve()
    for _ in range(50 if long else 3):
        client = spdk.perf(32, 65536, WORK["mixed"], 60)
        time.sleep(chance.uniform(0.1, 1.5))
        client.kill()
        spdk.identify()
    for _ in range(50 if long else 3):
        client = spdk.perf(32, 65536, WORK["mixed"], 60)
        client.wait_for(lambda: connected(4420), "connects")
        time.sleep(chance.uniform(0.1, 0.5))
        target.kill()
        # The program's outstanding operations have failed. It gets SIGTERM while it handles these failures.
        client.process.terminate()
        client.ends(60, None)
        target = spdk.serve()
        spdk.identify()
    target.stop()


@case("SPDK: SIGTERM while I/O is under way")
def terminated(field, long):
    spdk = Spdk(field)
    for _ in range(10 if long else 2):
        target = spdk.serve()
        client = spdk.perf(32, 65536, WORK["mixed"], 60)
        client.wait_for(lambda: connected(4420), "connects")
        time.sleep(0.5)
        target.stop(90)
        client.process.terminate()
        client.ends(90, None)

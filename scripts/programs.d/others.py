"""QEMU's migration, uDAPL."""

import os
import random
import socket
import time

from cases import case
from field import ADDRESS, Failed, Skipped

MACHINE = "qemu-system-x86_64 -display none -serial none -parallel none -nodefaults -m 128 -accel tcg".split()


class Monitor:
    """The monitor of a virtual machine, whose answers end with its prompt."""

    def __init__(self, program, path):
        program.wait_for(lambda: os.path.exists(path), "has a monitor")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        self.answer()

    def answer(self):
        said = b""
        while not said.endswith(b"(qemu) "):
            more = self.socket.recv(4096)
            if not more:
                raise Failed(f"QEMU has ended: {said}")
            said += more
        return said.decode()

    def ask(self, words):
        self.socket.sendall(words.encode() + b"\n")
        return self.answer()


@case("QEMU: a machine of 128 MiB migrates by rdma:, also with its memory pinned", "qemu-system-x86_64", "qemu-system-x86")
def migration(field, _long):
    image = field.path("image")
    with open(image, "wb") as file:
        file.write(random.Random(1).randbytes(64 << 20))
    for pinned in (False, True):
        there, here = field.path(f"there{pinned}"), field.path(f"here{pinned}")
        target = field.start([*MACHINE, "-monitor", f"unix:{there},server,nowait", "-incoming", "defer", "-S"])
        source = field.start([*MACHINE, "-monitor", f"unix:{here},server,nowait", "-device", f"loader,file={image},addr=0x2000000,force-raw=on"])
        to, of = Monitor(target, there), Monitor(source, here)
        if pinned:
            for monitor in (to, of):
                monitor.ask("migrate_set_capability rdma-pin-all on")
        said = to.ask(f"migrate_incoming rdma:{ADDRESS}:4444")
        if "rror" in said:
            raise Skipped(f"this QEMU has no migration by RDMA: {said}")
        of.ask(f"migrate -d rdma:{ADDRESS}:4444")
        until = time.monotonic() + 60
        while "completed" not in (state := of.ask("info migrate")):
            if "failed" in state or time.monotonic() > until:
                raise Failed(f"{state}{source.text()}{target.text()}")
            time.sleep(0.1)
        if "running" in (state := to.ask("info status") + of.ask("info status")):
            raise Failed(state)
        memory = [field.path(name) for name in ("old", "new")]
        for monitor, path in zip((of, to), memory):
            monitor.ask(f'pmemsave 0 0x8000000 "{path}"')
        old, new = (open(path, "rb").read() for path in memory)
        if old != new or old.count(b"\0") > len(old) * 3 // 4:
            raise Failed(f"the migrated memory ({len(old)} bytes) differs from the source's, or is empty")
        for program in (source, target):
            program.stop()


@case("dapltest (uDAPL): Sends, Reads and Writes, verified", "dapltest", "dapl2-utils")
def dapltest(field, _long):
    registry = field.path("dat.conf")
    with open(registry, "w") as file:
        file.write(f'urnic u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "{ADDRESS} 0" ""\n')
    environment = {"DAT_OVERRIDE": registry}
    server = field.start("dapltest -T S -D urnic", environment=environment)
    server.wait_for(lambda: "Service Point Ready" in server.text(), "listens")
    for work in (
        "-i 100 -V client SR 1024 server SR 1024",
        "-i 100 -t 1 -w 4 -V client SR 256 server RW 4096 server RR 4096 client SR 256 server SR 256",
    ):
        said = field.run(f"dapltest -T T -s {ADDRESS} -D urnic {work}", environment=environment)
        if "End of Work -- Client Exiting" not in said or "Total Send" not in said:
            raise Failed(said[-800:])
    field.run(f"dapltest -T Q -s {ADDRESS} -D urnic", environment=environment)
    server.ends()

"""The field of a siege: network namespaces, the processes in them, and their output."""

import json
import os
import select
import subprocess
import sys
import time

# The processor on which all processes except the server run, as if on other machines. The server may run on any
# processor.
ELSEWHERE = str(max(os.sched_getaffinity(0)))
SERVER, HONEST = "10.78.0.1", "10.78.0.2"
# The server's port and a closed one; the attackers' port and a closed one.
PORT, CLOSED, LISTENING, DEAF = 7500, 7501, 7502, 7503
# Maximum number of frames that wait on the kernel's virtual cables, for each processor; the kernel drops further
# frames. The default of a thousand is too small for the bursts to the attackers, and losses on the cables say nothing
# about the server.
CABLE, ROOM = "/proc/sys/net/core/netdev_max_backlog", 100_000
HERE = os.path.dirname(os.path.abspath(__file__))


class Failed(Exception):
    """The siege cannot go on."""


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}: {done.stderr.strip()}")


class Program:
    """A process that reads orders, and answers each with a line."""

    def __init__(self, words, environment=None, log=None):
        self.words = words
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log or sys.stderr, env=dict(os.environ, **(environment or {}))
        )
        self.rest = b""

    @property
    def pid(self):
        return self.process.pid

    def line(self, patience):
        """Returns the next line of the process, within `patience` seconds."""
        until = time.monotonic() + patience
        while b"\n" not in self.rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failed(f"{' '.join(self.words)}: silent for {patience} s")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                raise Failed(f"{' '.join(self.words)}: ended with status {self.process.wait()}")
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode()

    def tell(self, order, patience=30):
        """Gives an order; returns the answer."""
        try:
            self.process.stdin.write(order.encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Failed(f"{' '.join(self.words)}: gone with status {self.process.wait()}") from error
        return json.loads(self.line(patience))

    def end(self, patience=10):
        """Closes the input of the process and waits for its end; returns the rest of its output."""
        try:
            self.process.stdin.close()
        except OSError:
            pass
        said = self.rest
        try:
            while select.select([self.process.stdout], [], [], patience)[0]:
                more = os.read(self.process.stdout.fileno(), 65536)
                if not more:
                    break
                said += more
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        return said.decode()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def mask(processor):
    """Returns the mask of one processor as the kernel reads it: groups of 32 bits, the highest first."""
    return ",".join([f"{1 << processor % 32:x}"] + ["0"] * (processor // 32))


class Field:
    """Four namespaces: the server's, the honest client's, the attackers', and a switch between them."""

    def __init__(self, binary, log, port, engines=("1",)):
        self.binary, self.log, self.port = binary, log, port
        self.engines = {"server": engines[0], "honest": engines[-1]}
        self.names = {side: f"siege-{side}-{os.getpid()}" for side in ("switch", "server", "honest", "hostile")}
        self.server = self.honest = None
        self.room_before = None

    def inside(self, side, *words):
        return ["ip", "netns", "exec", self.names[side], *words]

    def make(self):
        self.widen(ROOM)
        for name in self.names.values():
            command("ip", "netns", "add", name)
        switch, hostile = self.names["switch"], self.names["hostile"]
        command("ip", "-n", switch, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
        for side in ("server", "honest", "hostile"):
            command("ip", "-n", switch, "link", "add", f"to-{side}", "type", "veth", "peer", "name", "eth0", "netns", self.names[side])
            command("ip", "-n", switch, "link", "set", f"to-{side}", "master", "br0", "up")
            command("ip", "-n", self.names[side], "link", "set", "eth0", "up")
            # With these offloads, a cable in memory would carry segments without checksums, and data that is not cut
            # into segments.
            command(*self.inside(side, "ethtool", "-K", "eth0", "tx", "off", "gso", "off"))
        if self.port == "kernel":
            for side, address in (("server", SERVER), ("honest", HONEST)):
                command("ip", "-n", self.names[side], "address", "add", f"{address}/16", "dev", "eth0")
                command("ip", "-n", self.names[side], "link", "set", "lo", "up")
            command("ip", "-n", self.names["server"], "address", "add", "fd78::1/64", "dev", "eth0", "nodad")
            command(*self.inside("server", "sysctl", "-qw", "net.core.somaxconn=4096"))
        # The processor ELSEWHERE handles frames from the server after they have passed its cable, so that the server's
        # sending thread is not charged for this work.
        steering = f"echo {mask(int(ELSEWHERE))} > /sys/class/net/to-server/queues/rx-0/rps_cpus"
        command(*self.inside("switch", "sh", "-c", steering))
        # The attackers' interface merges segments as a NIC does. It has its own queue, so that other frames in the
        # switch do not wait while the attackers' kernel processes the attackers' frames.
        command(*self.inside("hostile", "ethtool", "-K", "eth0", "gro", "on"))
        # The decoy is an Ethernet address that no host has. The switch sends frames for it to the server's interface,
        # so that attacks on the decoy and on the server differ only in the address.
        command("bridge", "-n", switch, "fdb", "add", "02:00:00:00:de:c0", "dev", "to-server", "master", "static")
        command("ip", "-n", hostile, "link", "set", "lo", "up")
        command("ip", "-n", switch, "link", "set", "br0", "up")
        settings = ["net.ipv4.ip_local_port_range=1024 65000", f"net.ipv4.ip_local_reserved_ports={LISTENING}-{DEAF}", "net.ipv4.tcp_tw_reuse=1", "net.core.somaxconn=4096"]
        for setting in settings:
            command(*self.inside("hostile", "sysctl", "-qw", setting))
        addresses = [f"address add 10.78.{1 + n // 250}.{1 + n % 250}/16 dev eth0" for n in range(64)]
        batch = subprocess.run(["ip", "-n", hostile, "-batch", "-"], input="\n".join(addresses), text=True, capture_output=True)
        if batch.returncode != 0:
            raise Failed(f"ip address add: {batch.stderr.strip()}")

    def node(self, side, address, *words):
        environment = {"URNIC_PORT": self.port, "URNIC_PROGRESS": "adaptive", "URNIC_ENGINES": self.engines[side]}
        if self.port != "kernel":
            environment.update(URNIC_PORT=f"{self.port}:eth0", URNIC_IP=address)
        if side == "server":
            # Memory for the buffers of two thousand connections, for the hall (the memory that every peer may read),
            # and for the pools of further engines.
            environment["URNIC_MEMORY_MB"] = str(256 + 64 * (int(self.engines[side]) - 1))
        # Both programs get a high priority, because the siege tests the stack, and not other load on the machine.
        place = ["taskset", "-c", ELSEWHERE] if side == "honest" else []
        return Program(["nice", "-n", "-15", *self.inside(side, *place, self.binary, *words)], environment, self.log)

    def start_server(self):
        if self.server:
            self.server.kill()
        self.server = self.node("server", f"{SERVER}/16,fd78::1/64", "serve", str(PORT))
        self.server.line(30)

    def start_honest(self):
        if self.honest:
            self.honest.kill()
        self.honest = self.node("honest", f"{HONEST}/16", "visit", SERVER, str(PORT))

    def attack(self, kind, port, count):
        words = self.inside("hostile", "taskset", "-c", ELSEWHERE, sys.executable, os.path.join(HERE, "attack.py"), kind.name, SERVER, str(port), str(count))
        return Program(words, log=self.log)

    def widen(self, room):
        """Sets how many frames may wait on the cables of this machine, if that is permitted."""
        try:
            with open(CABLE, "r+") as file:
                before = int(file.read())
                file.seek(0)
                file.write(str(room))
            self.room_before = before
        except OSError:
            pass

    def clear(self):
        if self.room_before:
            self.widen(self.room_before)
        for program in (self.server, self.honest):
            if program:
                program.kill()
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def footprint(pid):
    """Returns what a process uses: KiB of memory, descriptors, threads, CPU seconds."""
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    ticks = int(fields[11]) + int(fields[12])
    return {
        "kib": int(status["VmRSS"].split()[0]),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "cpu_s": ticks / os.sysconf("SC_CLK_TCK"),
    }

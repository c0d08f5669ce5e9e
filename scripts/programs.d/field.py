"""A network namespace, and the programs that run in it under `urnic run`."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

# An address on an interface other than the loopback, because libfabric accepts no address of the loopback.
ADDRESS = "10.79.0.1"
PATIENCE = 60


class Failed(Exception):
    """A program failed; the text says how, with its output."""


class Skipped(Exception):
    """A case cannot run here; the text says why."""


def make():
    """Makes the interface of this network namespace, which no other process uses."""
    for words in (
        "link set lo up",
        "link add p0 type veth peer name p1",
        f"address add {ADDRESS}/24 dev p0",
        "link set p0 up",
        "link set p1 up",
    ):
        subprocess.run(["ip", *words.split()], check=True)


def sockets(port, state):
    """Counts the TCP sockets at a local port that are in a state, which is a number of /proc/net/tcp.

    They are sockets of a program itself, or of RDMA over the kernel's sockets.
    """
    count = 0
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as file:
            for line in file:
                words = line.split()
                count += words[3] == state and int(words[1].rsplit(":", 1)[1], 16) == port
    return count


def listens(port):
    return sockets(port, "0A") > 0


def connected(port):
    return sockets(port, "01") > 0


class Field:
    def __init__(self, urnic, given, engines=("1",)):
        self.urnic, self.given, self.engines = urnic, given, engines
        self.folder = tempfile.TemporaryDirectory(prefix="programs-")
        self.running = []
        self.count = 0

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def start(self, command, plain=False, environment=None):
        """Starts a program, under `urnic run` unless it is `plain`."""
        words = command.split() if isinstance(command, str) else list(command)
        if not plain:
            engines = self.engines[self.count % len(self.engines)]
            words = [self.urnic, "run", "--engines", engines, "--", *words]
        self.count += 1
        program = Program(words, self.path(f"{self.count}.log"), environment)
        self.running.append(program)
        return program

    def serve(self, command, port=None, **how):
        """Starts a server and waits until it listens, by its TCP port or its log."""
        environment = dict(how.pop("environment", None) or {})
        if port is None:
            environment["URNIC_LOG"] = "urnic_verbs=debug"
        program = self.start(command, environment=environment, **how)
        program.wait_for(lambda: listens(port) if port else "listening" in program.text(), "listens")
        return program

    def run(self, command, patience=PATIENCE, status=0, **how):
        """Runs a program, which must succeed; returns its output."""
        return self.start(command, **how).ends(patience, status)

    @contextlib.contextmanager
    def case(self):
        """Ends all processes that a case has started."""
        try:
            yield self
        finally:
            for program in self.running:
                program.kill()
            self.running.clear()

    def pair(self, server, client, port=None, patience=PATIENCE, environment=None):
        """Runs a server that ends with its client; returns the output of both."""
        serving = self.serve(server, port, environment=environment)
        said = self.run(client, patience, environment=environment)
        return serving.ends(patience), said


class Program:
    def __init__(self, words, log, environment):
        self.name = " ".join(words[words.index("--") + 1 :] if "--" in words else words)
        self.log = log
        with open(log, "wb") as file:
            settings = {name: value for name, value in os.environ.items() if not name.startswith("URNIC_")}
            settings.update(environment or {})
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=settings, start_new_session=True)

    def text(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def fail(self, why):
        # Leaves out the debug lines of the log, which serve only to wait for programs.
        lines = [line for line in self.text().splitlines() if " DEBUG " not in line]
        raise Failed("\n".join([f"{self.name}: {why}", *lines[-15:]]))

    def wait_for(self, condition, what, patience=PATIENCE):
        until = time.monotonic() + patience
        while not condition():
            if self.process.poll() is not None and not condition():
                self.fail(f"ended with {self.process.returncode} before it {what}")
            if time.monotonic() > until:
                self.fail(f"did not reach the point where it {what} within {patience} s")
            time.sleep(0.01)

    def ends(self, patience=PATIENCE, status=0):
        """Waits until the program ends with `status` (None: any status); returns its output."""
        try:
            ended = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.fail(f"still runs after {patience} s")
        if status is not None and ended != status:
            self.fail(f"ended with {ended}")
        return self.text()

    def ended_early(self):
        """Fails if a server that serves for ever has ended by itself."""
        if self.process.poll() is not None:
            self.fail(f"had ended by itself, with {self.process.returncode}")

    def stop(self, patience=PATIENCE):
        """Ends a server that serves for ever, by SIGTERM."""
        self.ended_early()
        self.process.terminate()
        return self.ends(patience, None)

    def kill(self):
        """Kills the program and all processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def need(*programs):
    """Skips the case unless the programs are installed."""
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        raise Skipped(f"not installed: {', '.join(missing)}")


def hugepages_mb():
    """Returns the size of the free hugepages, in MiB."""
    with open("/proc/meminfo") as file:
        found = dict(re.findall(r"^(HugePages_Free|Hugepagesize):\s+(\d+)", file.read(), re.M))
    return int(found.get("HugePages_Free", 0)) * int(found.get("Hugepagesize", 0)) // 1024

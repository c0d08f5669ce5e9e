"""Runs one siege after another: attacks, measures the honest client, and checks what the server keeps."""

import json
import time

import lab
import verdict

# Seconds within which a server must give up the connections that peers have left. It gives up a dead peer after 15 s,
# or after 30 s if it has data for the peer.
CALM = 45
# Seconds within which attackers must end, after they have closed thousands of connections.
LEAVE = 90
# Seconds within which all attackers must be connected.
ARRIVE = 60
# Number of connections without an attack: two of the honest client, and one that is closing.
PEACE = 3
# Number of attempts at a measurement in which the honest client is too slow (`verdict.of_time`), because other load on
# the machine may be the cause. Beside two busy loops, on a virtual machine that stops a processor for 100 ms now and
# then, this happened in a quarter of the measurements.
ATTEMPTS = 6


class Campaign:
    def __init__(self, field, seconds, say, short=False):
        self.field, self.seconds, self.say, self.short = field, seconds, say, short
        self.start = None
        # Per cent of a core that the server uses without connections.
        self.idle = None
        # Results while attackers aim at a closed port, by transport of the attack. Short sieges measure them only once
        # for each transport.
        self.bases = {}

    def settle(self):
        """Starts server and honest client anew, and measures the server's footprint without an attack."""
        self.field.start_server()
        if self.idle is None:
            self.idle = self.share()
        self.field.start_honest()
        until = time.monotonic() + 30
        while self.field.honest.tell("mark")["rounds"]["count"] < 20:
            if time.monotonic() > until:
                raise lab.Failed("the honest client makes no progress, although nothing attacks the server yet")
            time.sleep(0.1)
        self.start = lab.footprint(self.field.server.pid)

    def measure(self, kind, port, count):
        """Runs one attack; returns the client's results, the attackers' report, the server's peak footprint and share of a core."""
        server, honest = self.field.server, self.field.honest
        honest.tell("mark")
        before, began = lab.footprint(server.pid), time.monotonic()
        attack = self.field.attack(kind, port, count)
        peak = before
        try:
            attack.line(ARRIVE)
            if kind.by == "listen":
                server.tell(f"dial {kind.at} {lab.LISTENING if port == lab.PORT else lab.DEAF} {count}")
            until = time.monotonic() + self.seconds
            while time.monotonic() < until:
                time.sleep(0.05)
                now = lab.footprint(server.pid)
                peak = {what: max(value, now[what]) for what, value in peak.items()}
            if kind.by == "listen":
                server.tell("hang")
            said = attack.end(LEAVE)
        finally:
            attack.kill()
        felt = honest.tell("mark")
        after = lab.footprint(server.pid)
        cpu = 100 * (after["cpu_s"] - before["cpu_s"]) / (time.monotonic() - began)
        try:
            tally = json.loads(said.strip().split("\n")[-1])
        except ValueError:
            tally = {"findings": [f"the attackers ended without a word, with status {attack.process.returncode}"]}
        return felt, tally, peak, cpu

    def calm(self, felt, lingers=False):
        """Waits until the honest client goes on and, unless the attack `lingers`, the server has given up the hostile
        connections. Returns the server's footprint then, or None if the time limit passes first. Adds the client's
        results to `felt`.
        """
        until = time.monotonic() + CALM
        rounds = connects = 0
        while time.monotonic() < until:
            time.sleep(0.05)
            more = self.field.honest.tell("mark")
            felt["stall_us"] = max(felt["stall_us"], more["stall_us"])
            for what in ("failed", "wrong"):
                felt[what] += more[what]
            felt["why"] = felt["why"] or more["why"]
            rounds, connects = rounds + more["rounds"]["count"], connects + more["connects"]["count"]
            status = self.field.server.tell("status")
            now = lab.footprint(self.field.server.pid)
            kept = now["descriptors"] - self.start["descriptors"]
            gone = lingers or status["guests"] <= PEACE and kept <= verdict.KEPT_DESCRIPTORS
            if gone and rounds > 4 and connects > 1:
                return now
        return None

    def share(self):
        """Returns the server's share of a core over a second, in per cent."""
        pid = self.field.server.pid
        before, began = lab.footprint(pid), time.monotonic()
        time.sleep(1)
        return 100 * (lab.footprint(pid)["cpu_s"] - before["cpu_s"]) / (time.monotonic() - began)

    def rest(self):
        """Ends the honest client, and returns the server's share of a core without connections, in per cent."""
        self.field.honest.end()
        until = time.monotonic() + CALM
        while self.field.server.tell("status")["guests"] and time.monotonic() < until:
            time.sleep(0.05)
        return min(self.share() for _ in range(3))

    def base(self, kind, count, anew):
        """Returns the honest client's results while the same attackers aim at a closed port."""
        if not self.short or anew or kind.by not in self.bases:
            felt = self.measure(kind, lab.CLOSED, count)[0]
            self.calm(felt)
            self.bases[kind.by] = felt
        return self.bases[kind.by]

    def one(self, kind, count):
        """Runs a siege of `kind` by `count` peers."""
        self.say(f"{kind.name}, {count}: {kind.what}")
        for attempt in range(ATTEMPTS):
            base = self.base(kind, count, attempt > 0)
            felt, tally, peak, cpu = self.measure(kind, lab.PORT, count)
            lingers = self.short and kind.lingers
            after = self.calm(felt, lingers)
            hard = verdict.of_data(felt, tally) + verdict.of_server(self.start, peak, after, lingers)
            late = verdict.of_time(felt, base)
            # A slow client in one attempt is no failure, because other load on the machine may be the cause. A slow
            # client in every attempt is a failure.
            if hard or not late:
                break
        result = {
            "kind": kind.name,
            "peers": count,
            "attempts": attempt + 1,
            "base": base,
            "felt": felt,
            "attack": tally,
            "server": {"start": self.start, "peak": peak, "after": after, "cpu_percent": round(cpu, 1)},
            "troubles": hard + late,
        }
        if hard or late:
            # Starts a new server, so that the next kind attacks a sound one.
            self.settle()
        return result

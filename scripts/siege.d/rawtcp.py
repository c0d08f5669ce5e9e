"""Our own TCP on frames. It behaves well enough for a server to accept its segments, and breaks the rules as the kind requires."""

import asyncio
import random
import socket
import struct

import frames
import wire
from frames import ACK, PSH, RST, SYN
from peer import Gone, crowd

# Prefix of the peers' addresses. The kernel does not have these addresses, so it does not answer for the peers.
PREFIX = bytes((10, 78, 2))


class Wire:
    """The socket, and the peers whose segments arrive on it."""

    def __init__(self, aim):
        self.aim, self.peers = aim, {}
        self.socket = frames.port(3)  # ETH_P_ALL
        asyncio.get_running_loop().add_reader(self.socket, self.receive)

    def send(self, frame):
        try:
            self.socket.send(frame)
        except BlockingIOError:
            pass

    def receive(self):
        for _ in range(256):
            try:
                frame = self.socket.recv(65536)
            except BlockingIOError:
                return
            kind = frame[12:14]
            if kind == b"\x08\x00" and frame[23] == 6 and frame[30:33] == PREFIX:
                peer = self.peers.get((frame[30:34], frame[36:38]))
                if peer and frame[26:30] == self.aim.address:
                    peer.hear(frame[14:])
            elif kind == b"\x08\x06" and frame[20:22] == b"\0\1" and frame[38:41] == PREFIX:
                answer = frames.arp(2, self.aim.own, frame[38:42], frame[22:28], frame[28:32])
                self.send(frames.ethernet(frame[6:12], self.aim.own, frames.ARP, answer))


class RawPeer:
    """Makes one connection after another, as the kind requires."""

    def __init__(self, number, wire_, tally, addresses):
        self.number, self.wire, self.tally = number, wire_, tally
        self.address = PREFIX + bytes((1 + number % addresses,))
        self.port = 1024 + number
        self.key = None
        self.arrived = asyncio.Event()
        self.settled = False

    def reset_state(self):
        self.next = random.getrandbits(32)
        self.expected = 0
        self.data = b""
        self.gone = self.synchronized = self.finished = False
        # The window in this peer's segments.
        self.window = 65535
        # Returns the time stamp for a segment; None: segments have no time stamps.
        self.clock = None
        # Whether the peer acknowledges arriving segments at once.
        self.acknowledges = True
        # Called for each arriving segment, with its sequence number and payload; None: nothing is called.
        self.also = None

    async def open(self, options=b"\2\4\5\xb4"):
        """Opens a connection to the server."""
        self.close()
        self.reset_state()
        self.port = 1024 + (self.port - 1024 + 3001) % 60000
        self.key = (self.address, struct.pack("!H", self.port))
        self.wire.peers[self.key] = self
        first = self.next
        for _ in range(10):
            self.segment(SYN, number=first, options=options)
            await self.until(lambda: self.synchronized, 0.3)
            if self.synchronized:
                break
        else:
            self.tally.lost += 1
            raise Gone
        self.next = first + 1
        self.segment(ACK)
        self.tally.opened += 1

    async def start_up(self, options=b"\2\4\5\xb4"):
        await self.open(options)
        request = wire.request()
        for _ in range(10):
            self.segment(ACK | PSH, payload=request)
            await self.until(lambda: len(self.data) >= 52, 0.5)
            if len(self.data) >= 52:
                break
        else:
            raise Gone
        self.next += len(request)
        self.room, self.hall = wire.Place(self.data[20:36]), wire.Place(self.data[36:52])
        self.tally.started += 1

    async def until(self, done, patience):
        """Waits at most `patience` seconds until `done` returns true; calls it again when a segment arrives."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while not done() and loop.time() < until:
            if self.gone:
                if not self.synchronized:
                    self.tally.refused += 1
                raise Gone
            self.arrived.clear()
            # This does not use wait_for, which may swallow a cancellation.
            alarm = loop.call_at(until, self.arrived.set)
            try:
                await self.arrived.wait()
            finally:
                alarm.cancel()

    async def stay(self):
        """Waits until the server ends the connection; sends only what arriving segments require."""
        self.settle()
        await self.until(lambda: False, 1e9)

    def segment(self, flags, number=None, payload=b"", options=b"", acknowledgement=None, window=None, urgent=0):
        """Sends a segment. Fields that are not given get correct values."""
        if self.clock is not None:
            options += b"\1\1\x08\x0a" + struct.pack("!II", self.clock() & 0xFFFFFFFF, 0)
        source, to = self.address, self.wire.aim.address
        number = self.next if number is None else number
        acknowledgement = self.expected if acknowledgement is None else acknowledgement
        window = self.window if window is None else window
        ports = (self.port, self.wire.aim.port)
        made = frames.tcp(source, to, ports, number, acknowledgement if flags & ACK else 0, flags, window, payload, options, urgent)
        self.wire.send(frames.ethernet(self.wire.aim.mac, self.wire.aim.own, frames.IPV4, frames.ipv4(source, to, 6, made)))

    def say(self, octets):
        """Sends octets in order, and advances the sequence number."""
        for at in range(0, len(octets), 1400):
            piece = octets[at : at + 1400]
            self.segment(ACK | PSH, payload=piece)
            self.next += len(piece)

    def hear(self, packet):
        """Processes a segment of the server."""
        head = (packet[0] & 15) * 4
        total = struct.unpack_from("!H", packet, 2)[0]
        number, acknowledgement, offset, flags, window = struct.unpack_from("!IIBBH", packet, head + 4)
        payload = packet[head + (offset >> 4) * 4 : total]
        self.arrived.set()
        if flags & RST:
            self.gone = True
            return
        if flags & SYN:
            self.expected, self.synchronized = number + 1 & 0xFFFFFFFF, True
            return
        self.heard = acknowledgement
        if number == self.expected and payload:
            if len(self.data) < 4096:
                self.data += payload
            if self.acknowledges:
                self.expected = number + len(payload) & 0xFFFFFFFF
        if flags & frames.FIN and (number + len(payload) & 0xFFFFFFFF) == self.expected and not self.finished:
            self.expected, self.finished = self.expected + 1 & 0xFFFFFFFF, True
        if self.also:
            self.also(number, payload)
        elif payload or flags & frames.FIN or number != self.expected:
            self.segment(ACK)

    def settle(self):
        if not self.settled:
            self.settled = True
            self.tally.settled += 1

    def close(self):
        """Resets the connection, if there is one."""
        if self.key and self.wire.peers.pop(self.key, None) and self.synchronized and not self.gone:
            self.segment(RST | ACK)
        self.key = None


async def run(kind, aim, count, tally, ended):
    """Lets `count` peers run `kind`, again and again, until `ended` is set."""
    net = Wire(aim)
    await crowd(kind, lambda number: RawPeer(number, net, tally, kind.addresses), count, ended, tally, together=32, pause=0.002)

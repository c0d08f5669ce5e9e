"""A hostile peer on a kernel socket."""

import asyncio
import errno
import itertools
import socket
import struct

import wire


class Tally:
    """The results of all peers of an attack."""

    def __init__(self):
        self.opened = self.started = self.refused = self.lost = 0
        # Number of peers whose first attempt has an outcome. The attack is under way when all first attempts have one.
        self.settled = 0
        self.findings = []

    def find(self, what):
        """Notes a violation by the server."""
        if len(self.findings) < 10:
            self.findings.append(what)


class Gone(Exception):
    """The server has ended the connection."""


class Peer:
    """Makes one connection after another, as the kind requires."""

    def __init__(self, number, target, sources, tally):
        self.number, self.target, self.tally = number, target, tally
        self.sources = itertools.cycle(sources[number % len(sources):] + sources[:number % len(sources)])
        self.socket = None
        self.room = self.hall = None
        self.loop = asyncio.get_running_loop()

    async def open(self, before=None):
        """Connects; `before` may set options of the socket."""
        self.close()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Lets the kernel choose the local port only when it knows the destination.
        self.socket.setsockopt(socket.IPPROTO_IP, 24, 1)
        if before:
            before(self.socket)
        self.socket.bind((next(self.sources), 0))
        try:
            await self.loop.sock_connect(self.socket, self.target)
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                self.tally.refused += 1
            else:
                self.tally.lost += 1
            raise Gone from error
        self.tally.opened += 1

    async def start_up(self, private=b"", flags=wire.CRC, before=None):
        """Connects and starts up; learns the location of the server's memory: the room, which only this peer may write
        and read, and the hall, which every peer may read.
        """
        await self.open(before)
        await self.send(wire.request(private, flags))
        reply = await self.receive(20)
        data = await self.receive(struct.unpack("!H", reply[18:])[0])
        if reply[:16] != wire.REPLY_KEY or reply[16] & wire.REJECT or len(data) != 32:
            raise Gone
        self.room, self.hall = wire.Place(data[:16]), wire.Place(data[16:])
        self.tally.started += 1

    async def send(self, octets):
        try:
            await self.loop.sock_sendall(self.socket, octets)
        except OSError as error:
            raise Gone from error
        # A send that the kernel takes at once does not yield to other tasks. Without this, other peers and the end of
        # the attack would have to wait.
        await asyncio.sleep(0)

    async def some(self, most=65536):
        """Waits for octets and returns them; returns none at the end of the stream."""
        try:
            return await self.loop.sock_recv(self.socket, most)
        except OSError as error:
            raise Gone from error

    async def receive(self, count):
        octets = b""
        while len(octets) < count:
            more = await self.some(count - len(octets))
            if not more:
                raise Gone
            octets += more
        return octets

    async def hear(self):
        """Returns the ULPDU of the next FPDU, without checking the CRC."""
        head = await self.receive(2)
        length = struct.unpack("!H", head)[0]
        rest = await self.receive(length + -(2 + length) % 4 + 4)
        return rest[:length]

    async def drain(self):
        """Reads until the server has ended the connection."""
        while await self.some():
            pass

    async def stay(self):
        """Neither sends nor receives from now on."""
        self.settle()
        await asyncio.Event().wait()

    def settle(self):
        """Notes that this peer's first attempt has an outcome."""
        if not self.settled:
            self.settled = True
            self.tally.settled += 1

    settled = False

    def reset(self):
        """Ends the connection with a RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self):
        if self.socket:
            self.socket.close()
            self.socket = None


async def run(kind, target, sources, tally, count, ended):
    """Lets `count` peers run `kind`, again and again, until `ended` is set."""
    await crowd(kind, lambda number: Peer(number, target, sources, tally), count, ended, tally)


async def crowd(kind, make, count, ended, tally, together=64, pause=0):
    """As `run`, with peers that `make` makes; pauses after every `together` peers."""

    async def forever(number):
        peer = make(number)
        try:
            while True:
                try:
                    await kind.run(peer)
                except Gone:
                    pass
                peer.close()
                peer.settle()
                await asyncio.sleep(kind.pause)
        finally:
            peer.close()

    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(forever(number)))
        if number % together == together - 1:
            await asyncio.sleep(pause)
    await ended.wait()
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            tally.find(f"the peer failed: {outcome!r}")

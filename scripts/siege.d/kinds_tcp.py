"""TCP that no kernel would speak: windows, gaps, acknowledgements and options."""

import asyncio
import struct
import time

import wire
from frames import ACK, FIN, PSH, SYN, URG
from kinds import kind

MSS, SACK_OK = b"\2\4\5\xb4", b"\4\2"


def raw(name, what, **more):
    return kind(name, what, by="raw", **more)


@raw("half-open", "a TCP handshake, then the peer is gone", lingers=True)
async def half_open(peer):
    await peer.open()
    peer.wire.peers.pop(peer.key)
    await peer.stay()


@raw("vanishes", "a start-up and Reads of 16 MiB, then the peer is gone", lingers=True)
async def vanishes(peer):
    await ask(peer)
    peer.wire.peers.pop(peer.key)
    await peer.stay()


@raw("vanishes-many", "the same from 8 addresses", lingers=True, addresses=8)
async def vanishes_many(peer):
    await vanishes(peer)


async def ask(peer, count=8, options=MSS):
    """Requests Reads of the whole hall (the memory that peers may read), so that the server has much to send."""
    await peer.start_up(options)
    reads = (wire.read_request(n, peer.hall.length, peer.hall.stag, peer.hall.address) for n in range(1, count + 1))
    peer.say(b"".join(map(wire.fpdu, reads)))


@raw("window-zero", "a window of zero from the first Read on; probes are answered")
async def window_zero(peer):
    await peer.start_up()
    peer.window, peer.acknowledges = 0, False
    peer.say(wire.fpdu(wire.read_request(1, peer.hall.length, peer.hall.stag, peer.hall.address)))
    await peer.stay()


@raw("window-one", "a window of one octet")
async def window_one(peer):
    await peer.start_up()
    peer.window = 1
    peer.say(wire.fpdu(wire.read_request(1, peer.hall.length, peer.hall.stag, peer.hall.address)))
    await peer.stay()


@raw("window-shrinks", "a window whose right edge moves back and forth")
async def window_shrinks(peer):
    await ask(peer)
    peer.settle()
    peer.acknowledges = False
    while not peer.gone:
        for window in (60000, 1000, 0, 30000, 1):
            peer.segment(ACK, window=window)
            await asyncio.sleep(0.02)


@raw("holes", "60 segments of a stream without its first octet, which never comes")
async def holes(peer):
    await peer.start_up(MSS + SACK_OK)
    payload = bytes(1000)
    for n in range(60):
        peer.segment(ACK | PSH, number=peer.next + 1 + n * 1000, payload=payload)
        if n % 10 == 9:
            await asyncio.sleep(0.01)
    await peer.stay()


@raw("many-holes", "every second octet of a stream, each in a segment of its own")
async def many_holes(peer):
    await peer.start_up(MSS + SACK_OK)
    for n in range(500):
        peer.segment(ACK | PSH, number=peer.next + 1 + n * 2, payload=b"x")
        if n % 20 == 19:
            await asyncio.sleep(0.01)
    await peer.stay()


@raw("overlaps", "segments that overlap and differ")
async def overlaps(peer):
    await peer.start_up()
    fpdu = wire.fpdu(wire.tagged(wire.WRITE, peer.room.stag, peer.room.address, bytes(1000)))
    peer.settle()
    while not peer.gone:
        for start, octet in ((400, b"a"), (100, b"b"), (700, b"c"), (300, b"d")):
            peer.segment(ACK | PSH, number=peer.next + start, payload=octet * 500)
        peer.say(fpdu)
        peer.segment(ACK | PSH, number=peer.next - 600, payload=b"e" * 600)
        await asyncio.sleep(0.02)


@raw("repeats", "the same old octets again and again")
async def repeats(peer):
    await peer.start_up()
    fpdu = wire.fpdu(wire.tagged(wire.WRITE, peer.room.stag, peer.room.address, bytes(1000)))
    peer.say(fpdu)
    peer.settle()
    while not peer.gone:
        for _ in range(5):
            peer.segment(ACK | PSH, number=peer.next - len(fpdu), payload=fpdu)
        await asyncio.sleep(0.02)


def blocks(*edges):
    return b"\1\1\5" + bytes((2 + 4 * len(edges),)) + struct.pack(f"!{len(edges)}I", *(edge & 0xFFFFFFFF for edge in edges))


@raw("sack-strange", "SACK blocks that are empty, reversed, or of what was never sent")
async def sack_strange(peer):
    await ask(peer, options=MSS + SACK_OK)
    peer.settle()
    peer.acknowledges, peer.also = False, lambda number, payload: None
    while not peer.gone:
        at = peer.expected
        for edges in ((at, at), (at + 3000, at + 1000), (at + (1 << 30), at + (1 << 30) + 5), (at - 9000, at - 1), (at + 1, at + 2, at + 3, at + 4)):
            peer.segment(ACK, options=blocks(*edges))
        await asyncio.sleep(0.02)


@raw("sack-reneges", "SACK blocks that are taken back")
async def sack_reneges(peer):
    await ask(peer, options=MSS + SACK_OK)
    peer.settle()
    peer.acknowledges, peer.also = False, lambda number, payload: None
    while not peer.gone:
        at = peer.expected
        peer.segment(ACK, options=blocks(at + 1448, at + 8 * 1448))
        peer.segment(ACK)
        await asyncio.sleep(0.02)
        # Acknowledges one octet: with this progress the server keeps the connection, and the peer can take back
        # octets again and again.
        peer.expected = at + 1
        peer.segment(ACK)


@raw("acks-ahead", "acknowledgements of what was never sent, and of long ago")
async def acks_ahead(peer):
    await ask(peer)
    peer.settle()
    while not peer.gone:
        for far in (1 << 20, 1 << 30, -1 << 30, -5):
            peer.segment(ACK, acknowledgement=peer.expected + far)
        await asyncio.sleep(0.02)


@raw("acks-split", "some 17 acknowledgements for every segment")
async def acks_split(peer):
    await ask(peer)
    peer.settle()

    def split(number, payload):
        for at in range(len(payload), 0, -max(1, len(payload) // 16)):
            peer.segment(ACK, acknowledgement=peer.expected - at + 1)
        peer.segment(ACK)

    peer.also = split
    await peer.stay()


@raw("acks-repeated", "the same acknowledgement again and again")
async def acks_repeated(peer):
    await ask(peer)
    peer.settle()
    peer.acknowledges, peer.also = False, lambda number, payload: None
    while not peer.gone:
        for _ in range(10):
            peer.segment(ACK)
        await asyncio.sleep(0.02)


@raw("mss-one", "an MSS of 1")
async def mss_one(peer):
    await ask(peer, options=b"\2\4\0\1")
    await peer.stay()


@raw("options-strange", "options that are cut, repeated, of no length, and a window scale of 255")
async def options_strange(peer):
    strange = (b"\2\4\5", b"\2\0", b"\3\3\xff", b"\x08\x0a\0\0", b"\5\3\1", MSS * 9, b"\xfe\1", b"\x1d\x12" + bytes(16))
    await peer.start_up(strange[peer.number % len(strange)])
    peer.settle()
    while not peer.gone:
        peer.segment(ACK, options=strange[peer.number % len(strange)])
        await asyncio.sleep(0.05)


@raw("timestamps-wild", "timestamps that leap twelve days forth and back")
async def timestamps_wild(peer):
    peer.settle()
    await peer.start_up(MSS + b"\1\1\x08\x0a" + struct.pack("!II", 1 << 20, 0))
    began, leaps = time.monotonic(), 0

    def clock():
        nonlocal leaps
        leaps += 1
        return (1 << 20) + int((time.monotonic() - began) * 1000) + (0, 1 << 30, -(1 << 30), 5)[leaps % 4]

    peer.clock = clock
    fpdu = wire.fpdu(wire.tagged(wire.WRITE, peer.room.stag, peer.room.address, bytes(1000)))
    while not peer.gone:
        peer.say(fpdu)
        await asyncio.sleep(0.02)


@raw("urgent-raw", "urgent pointers at what is not there")
async def urgent_raw(peer):
    await peer.start_up()
    peer.settle()
    fpdu = wire.fpdu(wire.tagged(wire.WRITE, peer.room.stag, peer.room.address, bytes(1000)))
    while not peer.gone:
        peer.segment(ACK | PSH | URG, payload=fpdu, urgent=(0, 1, 1000, 65535)[peer.number % 4])
        peer.next += len(fpdu)
        await asyncio.sleep(0.02)


@raw("syn-again", "SYNs and FINs in the middle of a connection")
async def syn_again(peer):
    await peer.start_up()
    peer.settle()
    while not peer.gone:
        peer.segment(SYN, number=peer.next - 1)
        peer.segment(SYN | ACK, number=peer.next + 100)
        peer.segment(FIN | ACK, number=peer.next + 5000)
        await asyncio.sleep(0.02)

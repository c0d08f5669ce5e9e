"""Attacks after the start-up: FPDUs that never end, lie, or ask for too much, and peers that never read the answers."""

import asyncio
import functools
import os
import socket
import struct

import wire
from kinds import kind


@functools.cache
def long_fpdu():
    """Returns a Write in a very long FPDU: 65,018 octets of ULPDU."""
    return wire.fpdu(wire.tagged(wire.WRITE, 1, 0, bytes(65004)))


@kind("stop-inside", "60,000 octets of one FPDU of 65,024, then nothing", short=400)
async def stop_inside(peer):
    await peer.start_up()
    await peer.send(long_fpdu()[:60000])
    await peer.stay()


@kind("stop-inside-many", "the same from 64 addresses", short=400, addresses=64)
async def stop_inside_many(peer):
    await stop_inside(peer)


@kind("dribble", "a long FPDU, an octet per second")
async def dribble(peer):
    await peer.start_up()
    for octet in long_fpdu():
        await peer.send(bytes([octet]))
        peer.settle()
        await asyncio.sleep(1)


@kind("crumbs", "a long FPDU in segments of one octet, a hundred a second")
async def crumbs(peer):
    await peer.start_up()
    peer.settle()
    for octet in long_fpdu():
        await peer.send(bytes([octet]))
        await asyncio.sleep(0.01)


@kind("long-fpdus", "Writes of 2,000 octets in FPDUs of two segments, of which the second comes late")
async def long_fpdus(peer):
    await peer.start_up()
    fpdu = wire.fpdu(wire.tagged(wire.WRITE, peer.room.stag, peer.room.address, bytes(2000)))
    peer.settle()
    while True:
        await peer.send(fpdu[:1500])
        await asyncio.sleep(0.05)
        await peer.send(fpdu[1500:])


@kind("gap-before", "a Send whose only segment has message offset 1000 or 4095: an echo would contain octets of other peers", pause=0.05)
async def gap_before(peer):
    await peer.start_up()
    await peer.send(wire.fpdu(wire.send(1, b"x", offset=1000 if peer.number % 2 else 4095)))
    peer.settle()
    await no_echo(peer, "a Send with a gap before it was echoed")


async def no_echo(peer, what):
    """Reads to the end; a Terminate may arrive, but no Send."""
    while True:
        ulpdu = await peer.hear()
        if len(ulpdu) > 1 and ulpdu[1] & 15 == wire.SEND:
            peer.tally.find(what)


@kind("gap-inside", "a Send of two segments with a gap between them", pause=0.05)
async def gap_inside(peer):
    await peer.start_up()
    first = wire.fpdu(wire.send(1, bytes(100), last=False))
    await peer.send(first + wire.fpdu(wire.send(1, bytes(100), offset=300)))
    peer.settle()
    await no_echo(peer, "a Send with a gap inside was echoed")


@kind("bad-crc", "Writes whose CRC is wrong", pause=0.02)
async def bad_crc(peer):
    await peer.start_up()
    await peer.send(wire.fpdu(wire.tagged(wire.WRITE, peer.room.stag, peer.room.address, bytes(512)), spoil=1))
    peer.settle()
    await peer.drain()


@kind("bad-stag", "Writes by guessed STags", pause=0.02)
async def bad_stag(peer):
    await peer.start_up()
    stag = struct.unpack("!I", os.urandom(4))[0]
    await peer.send(wire.fpdu(wire.tagged(wire.WRITE, stag, peer.room.address, bytes(512))))
    peer.settle()
    await peer.drain()


@kind("out-of-bounds", "Writes and Reads beyond the end of what is granted", pause=0.02)
async def out_of_bounds(peer):
    await peer.start_up()
    end = peer.room.address + peer.room.length
    write = wire.tagged(wire.WRITE, peer.room.stag, end - 8, b"hostile octets")
    read = wire.read_request(1, 16, peer.room.stag, end - 8)
    await peer.send(wire.fpdu(read if peer.number % 2 else write))
    peer.settle()
    await peer.drain()


@kind("bad-headers", "versions, opcodes, queues and lengths that do not exist", pause=0.02)
async def bad_headers(peer):
    await peer.start_up()
    strange = [
        wire.fpdu(wire.send(1, b"x", version=2)),
        wire.fpdu(wire.untagged(9, 0, 1, b"x")),
        wire.fpdu(wire.untagged(wire.SEND, 7, 1, b"x")),
        wire.fpdu(wire.send(77, b"x")),
        wire.fpdu(b"\x41"),
        wire.fpdu(b""),
        wire.fpdu(wire.send(1, b"x"), length=65535),
        wire.fpdu(wire.tagged(wire.READ_RESPONSE, 1, 0, bytes(64))),
    ]
    await peer.send(strange[peer.number % len(strange)])
    peer.settle()
    await peer.drain()


@kind("bad-markers", "markers are agreed on, and point nowhere", pause=0.02)
async def bad_markers(peer):
    await peer.start_up(flags=wire.CRC | wire.MARKERS)
    fpdu = wire.fpdu(wire.tagged(wire.WRITE, peer.room.stag, peer.room.address, bytes(1400)))
    await peer.send(b"\xff\xff\xff\xff" + fpdu[:508] + b"\x00\x00\xee\xee" + fpdu[508:])
    peer.settle()
    await peer.drain()


@kind("many-sends", "Sends without end, whose echoes are not taken")
async def many_sends(peer):
    await peer.start_up()
    peer.settle()
    for number in range(1, 1 << 32):
        await peer.send(wire.fpdu(wire.send(number, bytes(64))))


@kind("long-send", "a Send that is longer than any receive, in segments", pause=0.02)
async def long_send(peer):
    await peer.start_up()
    peer.settle()
    for at in range(0, 1 << 20, 1024):
        await peer.send(wire.fpdu(wire.send(1, bytes(1024), offset=at, last=False)))


@kind("tiny-fpdus", "Writes of no octets, as many as the window takes")
async def tiny_fpdus(peer):
    await peer.start_up()
    many = wire.fpdu(wire.tagged(wire.WRITE, peer.room.stag, peer.room.address, b"")) * 100
    peer.settle()
    while True:
        await peer.send(many)
        # The pause limits the peer to the share of the link that one of many peers gets.
        await asyncio.sleep(0.02)


@kind("cut-by-fin", "half an FPDU, then a FIN", pause=0.02)
async def cut_by_fin(peer):
    await peer.start_up()
    await peer.send(long_fpdu()[:5000])
    peer.socket.shutdown(socket.SHUT_WR)
    peer.settle()
    await peer.drain()


@kind("cut-by-rst", "half an FPDU, then a RST", pause=0.02)
async def cut_by_rst(peer):
    await peer.start_up()
    await peer.send(long_fpdu()[:5000])
    peer.settle()
    peer.reset()


@kind("terminates", "a Terminate as the first message", pause=0.02)
async def terminates(peer):
    await peer.start_up()
    await peer.send(wire.fpdu(wire.terminate(layer=peer.number % 4, kind=peer.number % 3, code=peer.number % 16)))
    peer.settle()
    await peer.drain()


@kind("terminates-stays", "a Terminate, and more behind it, without end")
async def terminates_stays(peer):
    await peer.start_up()
    await peer.send(wire.fpdu(wire.terminate()))
    peer.settle()
    while True:
        await peer.send(bytes(1000))
        await asyncio.sleep(0.05)


@kind("invalidates", "Sends that invalidate what is not the peer's", pause=0.02)
async def invalidates(peer):
    await peer.start_up()
    stag = peer.hall.stag if peer.number % 2 else peer.room.stag ^ 0x100
    await peer.send(wire.fpdu(wire.untagged(wire.SEND_INVALIDATE, 0, 1, b"x", invalidate=stag)))
    peer.settle()
    await no_echo(peer, "a Send that invalidates what it must not was echoed")


def small_window(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)


@kind("reads-beyond-ird", "1,000 Read Requests at once", pause=0.02)
async def reads_beyond_ird(peer):
    await peer.start_up()
    reads = (wire.read_request(n, 4096, peer.room.stag, peer.room.address) for n in range(1, 1001))
    await peer.send(b"".join(map(wire.fpdu, reads)))
    peer.settle()
    await peer.drain()


async def ask_for_all(peer, count=30):
    """Requests `count` Reads of the whole hall (the memory that peers may read) at once."""
    await peer.start_up(before=small_window)
    reads = (wire.read_request(n, peer.hall.length, peer.hall.stag, peer.hall.address) for n in range(1, count + 1))
    await peer.send(b"".join(map(wire.fpdu, reads)))
    peer.settle()


@kind("reads-never-taken", "30 Reads of 16 MiB, whose answers are not taken")
async def reads_never_taken(peer):
    await ask_for_all(peer)
    await peer.stay()


@kind("reads-taken-slowly", "30 Reads of 16 MiB, whose answers are taken at 1,000 octets per 0.1 s")
async def reads_taken_slowly(peer):
    await ask_for_all(peer)
    while await peer.some(1000):
        await asyncio.sleep(0.1)


@kind("reads-cut", "30 Reads of 16 MiB, then a RST", pause=0.02)
async def reads_cut(peer):
    await ask_for_all(peer)
    await peer.some(1000)
    peer.reset()


@kind("tiny-mss", "an MSS of 88 octets, so that segments are small both ways")
async def tiny_mss(peer):
    await peer.start_up(before=lambda sock: sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 88))
    read = wire.fpdu(wire.read_request(1, 65536, peer.hall.stag, peer.hall.address))
    await peer.send(read)
    peer.settle()
    while await peer.some(1000):
        await asyncio.sleep(0.01)


@kind("urgent", "urgent data in the middle of FPDUs")
async def urgent(peer):
    await peer.start_up()
    peer.settle()
    for octet in long_fpdu():
        try:
            peer.socket.send(bytes([octet]), socket.MSG_OOB)
        except BlockingIOError:
            pass
        except OSError:
            return
        await asyncio.sleep(0.05)

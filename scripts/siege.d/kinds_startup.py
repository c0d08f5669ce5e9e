"""Connections that stop before, during or after the start-up, and connections that come and go."""

import asyncio
import socket

import wire
from kinds import kind


@kind("idle-connect", "a TCP connection and not an octet")
async def idle_connect(peer):
    await peer.open()
    peer.settle()
    await peer.drain()


@kind("idle-connect-many", "the same from 64 addresses", addresses=64)
async def idle_connect_many(peer):
    await idle_connect(peer)


@kind("startup-drip", "an MPA Request, an octet every 0.2 s")
async def startup_drip(peer):
    await peer.open()
    peer.settle()
    for octet in wire.request():
        await peer.send(bytes([octet]))
        await asyncio.sleep(0.2)
    await peer.drain()


@kind("startup-oversize", "an MPA Request that announces 65,535 octets of private data, and 60,000 of them", pause=0.05)
async def startup_oversize(peer):
    await peer.open()
    await peer.send(wire.request(bytes(60000), length=65535))
    peer.settle()
    await peer.drain()


@kind("startup-garbage", "60,000 octets that are no MPA Request", pause=0.05)
async def startup_garbage(peer):
    await peer.open()
    await peer.send(b"GET / HTTP/1.1\r\n\r\n" * 3000)
    peer.settle()
    await peer.drain()


@kind("startup-half", "half an MPA Request, then a FIN")
async def startup_half(peer):
    await peer.open()
    await peer.send(wire.request()[:10])
    peer.socket.shutdown(socket.SHUT_WR)
    peer.settle()
    await peer.drain()


@kind("startup-refused", "terms that cannot be met: revision 9, or a Request with the bit of a reply", pause=0.05)
async def startup_refused(peer):
    await peer.open()
    strange = {"revision": 9} if peer.number % 2 else {"flags": wire.CRC | wire.REJECT}
    await peer.send(wire.request(**strange))
    peer.settle()
    await peer.drain()


@kind("request-unheard", "a whole MPA Request, then a RST before the answer", pause=0.02)
async def request_unheard(peer):
    await peer.open()
    await peer.send(wire.request())
    peer.settle()
    peer.reset()


@kind("silent", "a complete start-up, then nothing")
async def silent(peer):
    await peer.start_up()
    peer.settle()
    await peer.drain()


@kind("half-closed", "a complete start-up, then a FIN from a peer that stays and reads nothing")
async def half_closed(peer):
    await peer.start_up()
    peer.socket.shutdown(socket.SHUT_WR)
    peer.settle()
    await peer.stay()


@kind("churn", "a complete start-up and an orderly end, as fast as it goes", pause=0)
async def churn(peer):
    await peer.start_up()
    peer.socket.shutdown(socket.SHUT_WR)
    peer.settle()
    await peer.drain()


@kind("churn-echo", "the same with a message that is echoed", pause=0)
async def churn_echo(peer):
    await peer.start_up()
    text = peer.number.to_bytes(4, "big") * 16
    await peer.send(wire.fpdu(wire.send(1, text)))
    peer.settle()
    if (await peer.hear())[18:] != text:
        peer.tally.find("an echo differs from what was sent")
    peer.socket.shutdown(socket.SHUT_WR)
    await peer.drain()


@kind("churn-reset", "a complete start-up and a RST, as fast as it goes", pause=0)
async def churn_reset(peer):
    await peer.start_up()
    peer.settle()
    peer.reset()


@kind("churn-tcp", "a TCP connection and a FIN, as fast as it goes", pause=0)
async def churn_tcp(peer):
    await peer.open()
    peer.settle()

"""Misbehaving listeners that the server connects to."""

import asyncio
import socket

import frames
import lab
import rawtcp
import wire
from kinds import kind

PORT = lab.LISTENING


def listen(name, what, **more):
    return kind(name, what, by="listen", **more)


async def serve(address, tally, ended, attend):
    """Accepts connections and has `attend` handle each; accepts none if `attend` is None."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    listener.bind((address, PORT))
    listener.listen(4096)
    tally.settled = 1
    if attend is None:
        await ended.wait()
        listener.close()
        return
    loop = asyncio.get_running_loop()

    async def one(sock):
        with sock:
            try:
                await attend(loop, sock)
            except OSError:
                pass

    async def accept():
        while True:
            sock, _ = await loop.sock_accept(listener)
            sock.setblocking(False)
            tally.opened += 1
            tasks.add(asyncio.create_task(one(sock)))

    tasks = set()
    tasks.add(asyncio.create_task(accept()))
    await ended.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    listener.close()


async def to_the_end(loop, sock):
    while await loop.sock_recv(sock, 65536):
        pass


@listen("listen-silent", "TCP handshakes, and no answer to the MPA Request")
async def listen_silent(address, tally, ended):
    await serve(address, tally, ended, None)


@listen("listen-drip", "the key of an MPA Reply, an octet every 0.2 s, then nothing")
async def listen_drip(address, tally, ended):
    async def drip(loop, sock):
        for octet in wire.REPLY_KEY:
            await loop.sock_sendall(sock, bytes([octet]))
            await asyncio.sleep(0.2)
        await to_the_end(loop, sock)

    await serve(address, tally, ended, drip)


@listen("listen-garbage", "60,000 octets instead of an MPA Reply")
async def listen_garbage(address, tally, ended):
    async def garbage(loop, sock):
        await loop.sock_sendall(sock, b"\r\n" * 30000)
        await to_the_end(loop, sock)

    await serve(address, tally, ended, garbage)


@listen("listen-closes", "an end right after the handshake")
async def listen_closes(address, tally, ended):
    async def close(loop, sock):
        await asyncio.sleep(0)

    await serve(address, tally, ended, close)


@listen("listen-stops-inside", "a complete start-up, then 60,000 octets of one FPDU of 65,024")
async def listen_stops_inside(address, tally, ended):
    reply = wire.REPLY_KEY + wire.request()[16:]
    part = wire.fpdu(wire.tagged(wire.WRITE, 1, 0, bytes(65004)))[:60000]

    async def stop(loop, sock):
        await loop.sock_sendall(sock, reply)
        await loop.sock_sendall(sock, part)
        await to_the_end(loop, sock)

    await serve(address, tally, ended, stop)


@listen("listen-nobody", "a host that answers to ARP and to nothing else", at="10.78.2.250")
async def listen_nobody(address, tally, ended):
    rawtcp.Wire(frames.Aim(lab.SERVER, PORT, False))
    tally.settled = 1
    await ended.wait()

"""Floods of frames: 50 a second for each "connection", sent over and over."""

import os
import socket
import struct

import frames
from frames import ACK, FIN, PSH, RST, SYN
from kinds import kind
from lab import HONEST

FRAMES = 4096
honest = socket.inet_aton(HONEST)


def flood(name, what):
    return kind(name, what, by="frames")


def anybody(chance):
    """Returns an unused address of the server's network."""
    return bytes((10, 78, chance.randrange(100, 250), chance.randrange(1, 250)))


def segments(aim, chance, flags, payload=b"", source=None):
    """Makes TCP segments to the server's port, with guessed sequence numbers."""
    made = []
    for _ in range(FRAMES):
        sender = source or anybody(chance)
        ports = (chance.randrange(1024, 65000), aim.port)
        options = b"\2\4\5\xb4" if flags & SYN else b""
        segment = frames.tcp(sender, aim.address, ports, chance.getrandbits(32), chance.getrandbits(32), flags, 65000, payload, options)
        made.append(packet(aim, sender, 6, segment, aim.mac))
    return made


def packet(aim, sender, protocol, payload, mac=None, **more):
    return frames.ethernet(mac or aim.beside, aim.own, frames.IPV4, frames.ipv4(sender, aim.address, protocol, payload, **more))


@flood("syn-flood", "SYNs from addresses that nobody has")
def syn_flood(aim, chance):
    return segments(aim, chance, SYN)


@flood("syn-flood-honest", "SYNs that seem to come from the honest client")
def syn_flood_honest(aim, chance):
    return segments(aim, chance, SYN, source=honest)


@flood("fin-flood", "FINs for connections that do not exist")
def fin_flood(aim, chance):
    return segments(aim, chance, FIN | ACK)


@flood("rst-flood", "RSTs in the name of the honest client, by guess")
def rst_flood(aim, chance):
    return segments(aim, chance, RST | ACK, source=honest)


@flood("ack-flood", "data in the name of the honest client, by guess")
def ack_flood(aim, chance):
    return segments(aim, chance, ACK | PSH, bytes(200), source=honest)


@flood("flag-flood", "segments with all flags and with none")
def flag_flood(aim, chance):
    return segments(aim, chance, 63, b"x")[: FRAMES // 2] + segments(aim, chance, 0, b"x")[FRAMES // 2 :]


@flood("fragments", "fragments of packets that never become whole")
def fragments(aim, chance):
    return [packet(aim, anybody(chance), 6, bytes(1000), fragment=0x2000 | chance.randrange(1, 1000)) for _ in range(FRAMES)]


@flood("icmp-errors", "ICMP errors about the honest client's connections, by guess, with path MTUs of 68")
def icmp_errors(aim, chance):
    made = []
    for _ in range(FRAMES):
        quoted = frames.ipv4(aim.address, honest, 6, struct.pack("!HHI", aim.port, chance.randrange(1024, 65000), chance.getrandbits(32)))
        code = chance.choice((0, 1, 2, 3, 4, 13))
        made.append(packet(aim, anybody(chance), 1, frames.icmp(3, code, 68 if code == 4 else 0, quoted)))
    return made


@flood("pings", "echo requests of 1,400 octets")
def pings(aim, chance):
    return [packet(aim, anybody(chance), 1, frames.icmp(8, 0, chance.getrandbits(32), bytes(1392))) for _ in range(FRAMES)]


@flood("udp-flood", "UDP to ports that nobody has")
def udp_flood(aim, chance):
    def datagram():
        return struct.pack("!HHHH", chance.randrange(1024, 65000), chance.randrange(1, 65000), 108, 0) + bytes(100)

    return [packet(aim, anybody(chance), 17, datagram()) for _ in range(FRAMES)]


@flood("arp-requests", "ARP requests from ever new addresses")
def arp_requests(aim, chance):
    made = []
    for _ in range(FRAMES):
        mac = b"\x02" + chance.randbytes(5)
        made.append(frames.ethernet(aim.beside, aim.own, frames.ARP, frames.arp(1, mac, anybody(chance), bytes(6), aim.address)))
    return made


@flood("arp-claims", "claims to be the honest client")
def arp_claims(aim, chance):
    def claim():
        return frames.arp(chance.choice((1, 2)), b"\x02" + chance.randbytes(5), honest, aim.mac, aim.address)

    return [frames.ethernet(aim.beside, aim.own, frames.ARP, claim()) for _ in range(FRAMES)]


@flood("arp-conflicts", "claims to be the server")
def arp_conflicts(aim, chance):
    def claim():
        return frames.arp(chance.choice((1, 2)), b"\x02" + chance.randbytes(5), aim.address, bytes(6), aim.address)

    return [frames.ethernet(aim.beside, aim.own, frames.ARP, claim()) for _ in range(FRAMES)]


server6 = socket.inet_pton(socket.AF_INET6, "fd78::1")


@flood("nd-flood", "neighbour solicitations, advertisements and router advertisements from ever new addresses")
def nd_flood(aim, chance):
    made = []
    for number in range(FRAMES):
        source = server6[:8] + chance.randbytes(8)
        option = b"\1\1\x02" + chance.randbytes(5)
        kind, payload = (
            (135, bytes(4) + server6 + option),
            (136, b"\x60\0\0\0" + source + b"\2" + option[1:]),
            (134, b"\x40\0\x07\x08" + bytes(8) + b"\3\4\x40\xc0" + b"\xff" * 8 + bytes(4) + os.urandom(8) + bytes(8)),
        )[number % 3]
        if kind == 134:
            source = b"\xfe\x80" + bytes(6) + chance.randbytes(8)
        message = frames.icmp6(source, server6, kind, 0, payload)
        made.append(frames.ethernet(aim.beside, aim.own, frames.IPV6, frames.ipv6(source, server6, 58, message)))
    return made


@flood("vlans", "frames of every VLAN, and of VLANs in VLANs, with SYNs inside")
def vlans(aim, chance):
    made = []
    for number, plain in enumerate(segments(aim, chance, SYN)):
        tag = struct.pack("!HH", frames.VLAN, number % 4096)
        made.append(aim.beside + plain[6:12] + tag * (1 + number % 3) + plain[12:])
    return made


@flood("garbage", "cut, stretched and spoilt packets, and protocols that do not exist")
def garbage(aim, chance):
    made = []
    for number, plain in enumerate(segments(aim, chance, ACK, bytes(64))):
        plain = bytearray(aim.beside + plain[6:])
        if number % 4 == 0:
            plain = plain[: chance.randrange(15, len(plain))]
        elif number % 4 == 1:
            plain[chance.randrange(14, len(plain))] ^= 1 << chance.randrange(8)
        elif number % 4 == 2:
            plain[12:14] = chance.randbytes(2)
        else:
            plain[14:] = chance.randbytes(len(plain) - 14)
        made.append(bytes(plain))
    return made

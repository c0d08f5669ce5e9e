"""Ethernet frames of every kind, and the socket that sends them."""

import asyncio
import random
import socket
import struct
import time

INTERFACE = "eth0"
BROADCAST = b"\xff" * 6
# An address that no station has. The lab's bridge sends frames for this address to the server's interface.
DECOY = bytes.fromhex("02000000dec0")
ARP, IPV4, IPV6, VLAN = 0x0806, 0x0800, 0x86DD, 0x8100
FIN, SYN, RST, PSH, ACK, URG = 1, 2, 4, 8, 16, 32


def checksum(octets):
    if len(octets) % 2:
        octets += b"\0"
    total = sum(struct.unpack(f"!{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ethernet(to, source, kind, payload):
    return to + source + struct.pack("!H", kind) + payload


def ipv4(source, to, protocol, payload, fragment=0, ttl=64):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), random.getrandbits(16), fragment, ttl, protocol, 0, source, to)
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def ipv6(source, to, following, payload, hops=255):
    return struct.pack("!IHBB", 6 << 28, len(payload), following, hops) + source + to + payload


def tcp(source, to, ports, number, acknowledgement, flags, window, payload=b"", options=b"", urgent=0):
    """Makes a TCP segment over IPv4; pads the options."""
    options += b"\1" * (-len(options) % 4)
    head = struct.pack(
        "!HHIIBBHHH", *ports, number & 0xFFFFFFFF, acknowledgement & 0xFFFFFFFF, (5 + len(options) // 4) << 4, flags, window, 0, urgent
    )
    segment = head + options + payload
    total = checksum(source + to + struct.pack("!BBH", 0, 6, len(segment)) + segment)
    return segment[:16] + struct.pack("!H", total) + segment[18:]


def icmp(kind, code, rest, payload):
    message = struct.pack("!BBHI", kind, code, 0, rest) + payload
    return message[:2] + struct.pack("!H", checksum(message)) + message[4:]


def icmp6(source, to, kind, code, payload):
    message = struct.pack("!BBH", kind, code, 0) + payload
    total = checksum(source + to + struct.pack("!II", len(message), 58) + message)
    return message[:2] + struct.pack("!H", total) + message[4:]


def arp(operation, sender_mac, sender, target_mac, target):
    return struct.pack("!HHBBH", 1, IPV4, 6, 4, operation) + sender_mac + sender + target_mac + target


class Aim:
    """The destination of frames: the server's TCP port. For frames without a port, the Ethernet address of the server or decoy."""

    def __init__(self, address, port, closed):
        self.address, self.port = socket.inet_aton(address), port
        self.mac = hardware_address(address)
        with open(f"/sys/class/net/{INTERFACE}/address") as file:
            self.own = bytes.fromhex(file.read().strip().replace(":", ""))
        # For kinds without a TCP port, frames for the decoy take the place of frames for a closed port.
        self.beside = DECOY if closed else self.mac


def hardware_address(address):
    """Returns the Ethernet address that the kernel has found for a neighbour."""
    for _ in range(50):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"", (address, 9))
        time.sleep(0.02)
        with open("/proc/net/arp") as file:
            for line in file:
                fields = line.split()
                if fields[0] == address and fields[2] != "0x0":
                    return bytes.fromhex(fields[3].replace(":", ""))
    raise OSError(f"{address} does not answer to ARP")


def port(protocol=0):
    """Opens a socket for frames, which receives only those of `protocol`."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
    sock.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    sock.bind((INTERFACE, protocol))
    sock.setblocking(False)
    return sock


# Frames per second for each hostile "connection".
RATE = 50


async def flood(kind, aim, count, tally, ended):
    """Sends the frames that `kind` makes, over and over, at the rate for `count` connections."""
    frames = kind.run(aim, random.Random(7))
    sock = port()
    began, sent = time.monotonic(), 0
    tally.settled = 1
    while not ended.is_set():
        due = int((time.monotonic() - began) * count * RATE)
        # Sends at most 2,000 frames at once. Frames beyond these are skipped, because they are late.
        for _ in range(min(due - sent, 2000)):
            try:
                sock.send(frames[tally.opened % len(frames)])
                tally.opened += 1
            except BlockingIOError:
                tally.lost += 1
        sent = due
        await asyncio.sleep(0.002)

"""iWARP for hostile peers: MPA's Request, FPDUs with CRC32C, and the headers of DDP and RDMAP (RFC 5040, 5041, 5044)."""

import struct

REQUEST_KEY = b"MPA ID Req Frame"
REPLY_KEY = b"MPA ID Rep Frame"
MARKERS, CRC, REJECT = 0x80, 0x40, 0x20

# RDMAP's opcodes.
WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INVALIDATE, TERMINATE = 0, 1, 2, 3, 4, 7


def _table():
    table = []
    for octet in range(256):
        for _ in range(8):
            octet = octet >> 1 ^ (0x82F63B78 if octet & 1 else 0)
        table.append(octet)
    return table


_TABLE = _table()


def crc32c(octets):
    crc = 0xFFFFFFFF
    for octet in octets:
        crc = crc >> 8 ^ _TABLE[(crc ^ octet) & 0xFF]
    return crc ^ 0xFFFFFFFF


def request(private=b"", flags=CRC, revision=1, length=None):
    """Makes an MPA Request; `length` overrides the length of its private data."""
    return REQUEST_KEY + struct.pack("!BBH", flags, revision, len(private) if length is None else length) + private


def fpdu(ulpdu, length=None, spoil=0):
    """Makes an FPDU. `length` overrides its length field; `spoil` is added to its CRC."""
    head = struct.pack("!H", len(ulpdu) if length is None else length) + ulpdu
    head += bytes(-len(head) % 4)
    return head + struct.pack("<I", crc32c(head) + spoil & 0xFFFFFFFF)


def tagged(opcode, stag, offset, payload, last=True, version=1):
    """Makes a tagged DDP segment: a Write, or a Read Response."""
    control = 0x80 | (0x40 if last else 0) | version
    return struct.pack("!BBIQ", control, 0x40 | opcode, stag, offset) + payload


def untagged(opcode, queue, number, payload, offset=0, last=True, invalidate=0, version=1):
    """Makes an untagged DDP segment: message `number` of `queue`, at message offset `offset`."""
    control = (0x40 if last else 0) | version
    return struct.pack("!BBIIII", control, 0x40 | opcode, invalidate, queue, number, offset) + payload


def send(number, payload, **more):
    return untagged(SEND, 0, number, payload, **more)


def read_request(number, size, stag, offset, sink=1, sink_offset=0):
    """Makes a Read Request for `size` octets at `offset` of the server's `stag`."""
    return untagged(READ_REQUEST, 1, number, struct.pack("!IQIIQ", sink, sink_offset, size, stag, offset))


def terminate(layer=0, kind=0, code=0):
    """Makes a Terminate without the headers of the offending segment."""
    return untagged(TERMINATE, 2, 1, struct.pack("!BBBB", layer << 4 | kind, code, 0, 0))


class Place:
    """Memory that the server offers in its private data."""

    def __init__(self, octets):
        self.address, self.stag, self.length = struct.unpack("!QII", octets)

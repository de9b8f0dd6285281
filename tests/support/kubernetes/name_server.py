"""The test cluster's name server: answers with the addresses of a JSON file, read at each question. Stdlib only.

Debian has no CoreDNS. The tests start this script on the first node.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

SECONDS = 5
"""For which an answer may be kept."""
HEADER, A, IN = 12, 1, 1
FOUND, UNKNOWN = 0x8580, 0x8583
"""Flags of an authoritative answer (RFC 1035, section 4.1.1): no error, and no such name."""
OF_THE_QUESTION = b"\xc0\x0c"
"""A pointer to the question's name."""


def answer(query: bytes, addresses: Mapping[str, str]) -> bytes:
    """Answer a question for an IPv4 address. Raises IndexError or ValueError for another question."""
    labels, at = [], HEADER
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    end = at + 5
    kind = int.from_bytes(query[at + 1 : at + 3], "big")
    address = addresses.get(".".join(labels).lower(), "")
    record = b""
    if address and kind == A:
        record = OF_THE_QUESTION + struct.pack("!HHIH", A, IN, SECONDS, 4) + socket.inet_aton(address)
    header = query[:2] + struct.pack("!5H", FOUND if address else UNKNOWN, 1, bool(record), 0, 0)
    return header + query[HEADER:end] + record


def serve(address: str, port: str, file: str) -> None:
    """Answer until the process is killed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, int(port)))
        while True:
            query, client = server.recvfrom(512)
            try:
                reply = answer(query, json.loads(Path(file).read_text()))
            except (IndexError, ValueError):
                continue
            server.sendto(reply, client)


if __name__ == "__main__":
    serve(*sys.argv[1:])

"""Forwarder between two network devices that drops and delays frames, for kernels without netem.

Run as `poor_cable.py PORT PORT LOSS_PERCENT DELAY_MS SEED`; prints `ready` and runs until it is killed.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import sys
import time
from contextlib import suppress

import numpy as np

ALL_FRAMES = 0x0003
SOL_PACKET, PACKET_VNET_HDR = 263, 15
LARGEST = 1 << 17


def open_port(name: str) -> socket.socket:
    """Open a raw socket of a device with vnet headers, so that checksum and segmentation offload is preserved."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_FRAMES))
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
    port.bind((name, ALL_FRAMES))
    port.setblocking(False)
    return port


def carry(names: list[str], loss: float, delay_s: float, chance: np.random.Generator) -> None:
    ports = [open_port(name) for name in names]
    selector = selectors.DefaultSelector()
    for port, other in zip(ports, reversed(ports), strict=True):
        selector.register(port, selectors.EVENT_READ, other)
    under_way: list[tuple[float, int, socket.socket, bytes]] = []
    number = 0
    print("ready", flush=True)
    while True:
        wait_s = under_way[0][0] - time.monotonic() if under_way else None
        for key, _ in selector.select(None if wait_s is None else max(0.0, wait_s)):
            try:
                frame, address = key.fileobj.recvfrom(LARGEST)  # type: ignore[union-attr]
            except BlockingIOError:
                continue
            if address[2] != socket.PACKET_OUTGOING and chance.random() >= loss:
                number += 1
                heapq.heappush(under_way, (time.monotonic() + delay_s, number, key.data, frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, port, frame = heapq.heappop(under_way)
            with suppress(OSError):  # a full device drops frames, as a real one does
                port.send(frame)


if __name__ == "__main__":
    carry(
        sys.argv[1:3], float(sys.argv[3]) / 100.0, float(sys.argv[4]) / 1000.0, np.random.default_rng(int(sys.argv[5]))
    )

"""One hash for everything a generator was given, so that a result can name its inputs."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kinema4d_ros.generators._kernels import pack_depths
from kinema4d_ros.generators.protocol import GenerateRequest

__all__ = ["request_sha256"]

_THREADS = 4


def request_sha256(request: GenerateRequest) -> str:
    """64 hex digits over image, measured depth, camera, times and robot frames; the seed is not part of it.

    A robot frame counts with its link ids, the z of its robot pixels and its colours there: for a pinhole,
    pixel and z give the point, and hashing a tenth of the 203 MB of 49 frames is what keeps this fast. The
    frames' own hashes are hashed in order, so they can be computed side by side.
    """
    robot, camera = request.robot, request.camera

    def frame(t: int) -> bytes:
        ids = np.ascontiguousarray(robot.link_ids[t])
        depths = np.empty(ids.size, np.float32)
        count = pack_depths(np.ascontiguousarray(robot.xyz[t]), ids, depths)
        digest = hashlib.sha256(ids.data)
        digest.update(depths[:count].data)
        if robot.rgb is not None:
            digest.update(robot.rgb[t][ids != 0].data)
        return digest.digest()

    whole = hashlib.sha256(b"kinema4d request 1\n")
    whole.update(f"{camera.width} {camera.height} {len(robot)} {robot.rgb is not None}\n".encode())
    for array in (camera.K, camera.base_T_camera, request.times):
        whole.update(np.ascontiguousarray(array, dtype="<f8").data)
    whole.update(np.ascontiguousarray(request.image).data)
    whole.update(b"no depth" if request.depth is None else np.ascontiguousarray(request.depth).data)
    with ThreadPoolExecutor(_THREADS) as pool:
        for digest in pool.map(frame, range(len(robot))):
            whole.update(digest)
    return whole.hexdigest()

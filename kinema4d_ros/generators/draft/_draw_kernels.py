"""Compiled kernels of the drawing: rays against the fitted shapes, their colours, the robot's colours, compositing."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kinema4d_ros.core.outcomes import PointBasis
from kinema4d_ros.generators._kernels import copy_flat

__all__ = [
    "cast_shapes",
    "compose_over",
    "copy_frame",
    "find_changes",
    "keep_around",
    "paint_robot",
    "paint_shapes",
    "project_shadow",
    "robot_normals",
    "shade_plane",
]

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_NEAR_M = 0.01
_HIDDEN_M = 0.006
"""A point this far behind the fitted surface at its pixel of the first image was hidden there."""
_UNSEEN = 0
_FITTED, _ROBOT = int(PointBasis.FITTED), int(PointBasis.ROBOT)


@njit(cache=True, nogil=True)
def _enter(
    kinds: Ints, planes: Doubles, starts: Ints, sizes: Doubles, part: int, o: Doubles, d: Doubles, n: Doubles
) -> float:
    """Return where a ray o + t d enters a convex part, infinity if it misses; writes the normal n (3,) there."""
    near, far = -np.inf, np.inf
    for i in range(starts[part], starts[part + 1]):
        along = planes[i, 0] * d[0] + planes[i, 1] * d[1] + planes[i, 2] * d[2]
        away = planes[i, 3] - planes[i, 0] * o[0] - planes[i, 1] * o[1] - planes[i, 2] * o[2]
        if along == 0.0:
            if away < 0.0:
                return np.inf
        elif along < 0.0:
            if away / along > near:
                near = away / along
                n[0], n[1], n[2] = planes[i, 0], planes[i, 1], planes[i, 2]
        else:
            far = min(far, away / along)
    if kinds[part] > 0:
        # An elliptic cylinder along z (1) or an ellipsoid (2), scaled to radius 1.
        round_z = 1.0 if kinds[part] == 2 else 0.0
        a = b = 0.0
        c = -1.0
        for k in range(3):
            weight = round_z if k == 2 else 1.0
            dk, ok = d[k] / sizes[part, k], o[k] / sizes[part, k]
            a += weight * dk * dk
            b += weight * dk * ok
            c += weight * ok * ok
        if a < 1e-12:
            if c > 0.0:
                return np.inf
        else:
            root = b * b - a * c
            if root < 0.0:
                return np.inf
            root = np.sqrt(root)
            if (-b - root) / a > near:
                near = (-b - root) / a
                length = 0.0
                for k in range(3):
                    weight = round_z if k == 2 else 1.0
                    n[k] = weight * (o[k] + near * d[k]) / (sizes[part, k] * sizes[part, k])
                    length += n[k] * n[k]
                length = 1.0 / np.sqrt(max(length, 1e-30))
                n[0], n[1], n[2] = n[0] * length, n[1] * length, n[2] * length
            far = min(far, (-b + root) / a)
    return near if _NEAR_M < near <= far else np.inf


@njit(cache=True, nogil=True)
def cast_shapes(
    kinds: Ints,
    planes: Doubles,
    plane_start: Ints,
    sizes: Doubles,
    part_start: Ints,
    radii: Doubles,
    camera_T_object: Doubles,
    active: Bools,
    K: Doubles,
    z: Floats,
    who: Bytes,
    normal: Floats,
    windows: Ints,
) -> None:
    """Cast the rays of the pixels that may see a shape: z (H, W) metres, who (H, W) 1 + object, normal (H, W, 3).

    The normal is in the object's frame. Pixels where nothing is nearer than `z` are unchanged. `camera_T_object` is
    (N, 4, 4); `windows` (N, 4) receives the first and the last row and column (exclusive) of each object.
    """
    height, width = z.shape
    o, d, n, best = np.empty(3), np.empty(3), np.empty(3), np.empty(3)
    for i in range(len(radii)):
        windows[i] = 0
        if not active[i]:
            continue
        T = camera_T_object[i]
        depth = T[2, 3]
        if depth + radii[i] <= _NEAR_M:
            continue
        top, bottom, left, right = 0, height, 0, width
        if depth - radii[i] > 0.05:
            u, v = K[0, 0] * T[0, 3] / depth + K[0, 2], K[1, 1] * T[1, 3] / depth + K[1, 2]
            # Bounds of the sphere around it: its outline is at most this far from its centre.
            slant = np.sqrt(1.0 + max(abs(T[0, 3]), abs(T[1, 3])) ** 2 / (depth * depth))
            reach_u = K[0, 0] * radii[i] * slant / (depth - radii[i]) + 2.0
            reach_v = K[1, 1] * radii[i] * slant / (depth - radii[i]) + 2.0
            left, right = max(0, int(u - reach_u)), min(width, int(u + reach_u) + 1)
            top, bottom = max(0, int(v - reach_v)), min(height, int(v + reach_v) + 1)
        if left >= right or top >= bottom:
            continue
        windows[i, 0], windows[i, 1], windows[i, 2], windows[i, 3] = top, bottom, left, right
        for k in range(3):
            o[k] = -(T[0, k] * T[0, 3] + T[1, k] * T[1, 3] + T[2, k] * T[2, 3])
        for v in range(top, bottom):
            y = (v + 0.5 - K[1, 2]) / K[1, 1]
            for u in range(left, right):
                x = (u + 0.5 - K[0, 2] - K[0, 1] * y) / K[0, 0]
                for k in range(3):
                    d[k] = T[0, k] * x + T[1, k] * y + T[2, k]
                nearest = np.inf
                for part in range(part_start[i], part_start[i + 1]):
                    t = _enter(kinds, planes, plane_start, sizes, part, o, d, n)
                    if t < nearest:
                        nearest = t
                        best[0], best[1], best[2] = n[0], n[1], n[2]
                if nearest < z[v, u]:
                    z[v, u] = nearest
                    who[v, u] = i + 1
                    normal[v, u, 0], normal[v, u, 1], normal[v, u, 2] = best[0], best[1], best[2]


@njit(cache=True, nogil=True)
def _light_at(nx: float, ny: float, nz: float, light: Doubles, out: Doubles) -> None:
    """Write the light (3,) on a surface of a normal in the base frame; 1 = on the lit table. See `Lighting.numbers`."""
    key = max(nx * light[0] + ny * light[1] + nz * light[2], 0.0)
    sky = 0.75 + 0.25 * nz
    for c in range(3):
        out[c] = light[3 + c] * sky + light[6 + c] * key


@njit(cache=True, nogil=True)
def _face(n: Doubles) -> int:
    """Return which of the six sides a normal in the object's frame belongs to."""
    axis = 0
    for k in range(1, 3):
        if abs(n[k]) > abs(n[axis]):
            axis = k
    return 2 * axis + (1 if n[axis] > 0.0 else 0)


@njit(cache=True, nogil=True)
def paint_shapes(
    windows: Ints,
    z: Floats,
    who: Bytes,
    normal: Floats,
    camera_T_object: Doubles,
    base_R: Doubles,
    camera_T_first: Doubles,
    K: Doubles,
    picture: Bytes,
    labels: Bytes,
    first_z: Floats,
    first_who: Bytes,
    tint: Doubles,
    light: Doubles,
    rgb: Bytes,
    xyz: Floats,
    basis: Bytes,
) -> None:
    """Paint the cast pixels into rgb, xyz (H, W, 3) and basis (H, W) where they are nearer; clears z and who.

    Colours are those of the same surface point in `picture` where `labels` (H, W) says that it shows the object and
    the first image did not hide it; elsewhere `tint` (N, 6, 3), the linear colour of that side on the lit table.
    Borders are blended with what is behind. `base_R` (3, 3) rotates camera to base.
    """
    height, width = z.shape
    q, n0, n1, before, now = np.empty(3), np.empty(3), np.empty(3), np.empty(3), np.empty(3)
    colour = np.empty(3)
    for i in range(len(windows)):
        top, bottom, left, right = windows[i]
        T, F = camera_T_object[i], camera_T_first[i]
        for v in range(top, bottom):
            y = (v + 0.5 - K[1, 2]) / K[1, 1]
            for u in range(left, right):
                if who[v, u] != i + 1 or z[v, u] > xyz[v, u, 2]:
                    continue
                depth = np.float64(z[v, u])
                x = (u + 0.5 - K[0, 2] - K[0, 1] * y) / K[0, 0]
                px, py, pz = x * depth - T[0, 3], y * depth - T[1, 3], depth - T[2, 3]
                for k in range(3):
                    q[k] = T[0, k] * px + T[1, k] * py + T[2, k] * pz
                n = normal[v, u]
                for k in range(3):
                    n1[k] = T[k, 0] * n[0] + T[k, 1] * n[1] + T[k, 2] * n[2]
                    n0[k] = F[k, 0] * n[0] + F[k, 1] * n[1] + F[k, 2] * n[2]
                fx = F[0, 0] * q[0] + F[0, 1] * q[1] + F[0, 2] * q[2] + F[0, 3]
                fy = F[1, 0] * q[0] + F[1, 1] * q[1] + F[1, 2] * q[2] + F[1, 3]
                fz = F[2, 0] * q[0] + F[2, 1] * q[1] + F[2, 2] * q[2] + F[2, 3]
                _light_at(
                    base_R[0, 0] * n1[0] + base_R[0, 1] * n1[1] + base_R[0, 2] * n1[2],
                    base_R[1, 0] * n1[0] + base_R[1, 1] * n1[1] + base_R[1, 2] * n1[2],
                    base_R[2, 0] * n1[0] + base_R[2, 1] * n1[1] + base_R[2, 2] * n1[2],
                    light, now,
                )  # fmt: skip
                seen = False
                if fz > _NEAR_M and n0[0] * fx + n0[1] * fy + n0[2] * fz < -0.05 * fz:
                    pu, pv = (K[0, 0] * fx + K[0, 1] * fy) / fz + K[0, 2] - 0.5, K[1, 1] * fy / fz + K[1, 2] - 0.5
                    cu, cv = int(np.floor(pu + 0.5)), int(np.floor(pv + 0.5))
                    if 0 <= cu < width and 0 <= cv < height and labels[cv, cu] == i + 1:
                        seen = first_who[cv, cu] != i + 1 or first_z[cv, cu] > fz - _HIDDEN_M
                if seen:
                    _light_at(
                        base_R[0, 0] * n0[0] + base_R[0, 1] * n0[1] + base_R[0, 2] * n0[2],
                        base_R[1, 0] * n0[0] + base_R[1, 1] * n0[1] + base_R[1, 2] * n0[2],
                        base_R[2, 0] * n0[0] + base_R[2, 1] * n0[1] + base_R[2, 2] * n0[2],
                        light, before,
                    )  # fmt: skip
                    iu, iv = int(np.floor(pu)), int(np.floor(pv))
                    su, sv = pu - iu, pv - iv
                    total = 0.0
                    colour[:] = 0.0
                    for dv in range(2):
                        for du in range(2):
                            a, b = iv + dv, iu + du
                            if 0 <= a < height and 0 <= b < width and labels[a, b] == i + 1:
                                weight = (sv if dv else 1.0 - sv) * (su if du else 1.0 - su)
                                total += weight
                                for c in range(3):
                                    colour[c] += weight * picture[a, b, c]
                    seen = total > 0.0
                    if seen:
                        for c in range(3):
                            ratio = min(max(now[c] / max(before[c], 1e-3), 0.3), 3.0)
                            colour[c] = colour[c] / total
                            if abs(ratio - 1.0) > 0.01:
                                colour[c] *= ratio ** (1.0 / 2.2)
                if not seen:
                    side = _face(n)
                    for c in range(3):
                        colour[c] = 255.0 * min(tint[i, side, c] * now[c], 1.0) ** (1.0 / 2.2)
                # Share of the pixel that the object covers, by its neighbours: a soft border as a lens has.
                share = 0.0
                for dv in range(-1, 2):
                    for du in range(-1, 2):
                        a, b = min(max(v + dv, 0), height - 1), min(max(u + du, 0), width - 1)
                        if who[a, b] != 0 or xyz[a, b, 2] < z[v, u]:
                            share += (2.0 - abs(dv)) * (2.0 - abs(du)) / 16.0
                for c in range(3):
                    mixed = share * colour[c] + (1.0 - share) * rgb[v, u, c]
                    rgb[v, u, c] = np.uint8(min(max(mixed, 0.0), 255.0) + 0.5 if mixed < 254.5 else 255)
                xyz[v, u, 0] = np.float32(x * depth)
                xyz[v, u, 1] = np.float32(y * depth)
                xyz[v, u, 2] = np.float32(depth)
                basis[v, u] = _FITTED
    for i in range(len(windows)):
        top, bottom, left, right = windows[i]
        for v in range(top, bottom):
            for u in range(left, right):
                z[v, u] = np.inf
                who[v, u] = _UNSEEN


@njit(cache=True, nogil=True)
def copy_frame(still_rgb: Bytes, still_xyz: Floats, still_basis: Bytes, rgb: Bytes, xyz: Floats, basis: Bytes) -> None:
    """Copy the scene at rest into a frame; all arrays are contiguous."""
    copy_flat(still_rgb.reshape(-1), rgb.reshape(-1))
    copy_flat(still_xyz.reshape(-1), xyz.reshape(-1))
    copy_flat(still_basis.reshape(-1), basis.reshape(-1))


@njit(cache=True, nogil=True)
def find_changes(
    xyz: Floats, ids: Bytes, first_xyz: Floats, first_ids: Bytes, least_m: float, window: Ints, out: Bytes
) -> None:
    """Write 1 to out (h, w), a window of the frame, where its robot differs from the first's.

    It differs in link, or by `least_m` of depth. The window is (top, bottom, left, right), ends exclusive.
    """
    top, bottom, left, right = window
    for v in range(top, bottom):
        for u in range(left, right):
            same = ids[v, u] == first_ids[v, u]
            if same and ids[v, u] != 0:
                same = abs(xyz[v, u, 2] - first_xyz[v, u, 2]) < least_m
            out[v - top, u - left] = 0 if same else 1


@njit(cache=True, nogil=True)
def keep_around(differs: Bytes, window: Ints, margin: Bools, ids: Bytes, image: Bytes, same: Bools, rgb: Bytes) -> None:
    """Mark the pixels of the margin (H, W) that do not differ as the same; copy the image beside the robot there.

    `differs` (h, w) is of a window (top, bottom, left, right) that contains the margin.
    """
    top, bottom, left, right = window
    for v in range(top, bottom):
        for u in range(left, right):
            if not margin[v, u]:
                continue
            same[v, u] = differs[v - top, u - left] == 0
            if same[v, u] and ids[v, u] == 0:
                for c in range(3):
                    rgb[v, u, c] = image[v, u, c]


@njit(cache=True, nogil=True)
def project_shadow(
    points: Doubles, lamp: Doubles, low: Doubles, cell_m: float, rows: int, columns: int, height_m: float,
    high_m: float, cells: Ints, high: Bools,
) -> int:  # fmt: skip
    """Project points (M, 3) from a lamp (3,) onto the plane at `height_m`; return how many hit a cell of the grid.

    Writes their row and column (M, 2), and whether the point is higher than `high_m` above the plane. Points in the
    plane and those about as high as the lamp cast no shadow.
    """
    room = lamp[2] - height_m
    count = 0
    for i in range(len(points)):
        above = points[i, 2] - height_m
        if not (above > 0.001 and above < 0.9 * room):
            continue
        stretch = room / (room - above)
        column = np.int64(np.rint((lamp[0] + (points[i, 0] - lamp[0]) * stretch - low[0]) / cell_m))
        row = np.int64(np.rint((lamp[1] + (points[i, 1] - lamp[1]) * stretch - low[1]) / cell_m))
        if 0 <= row < rows and 0 <= column < columns:
            cells[count, 0], cells[count, 1] = row, column
            high[count] = above > high_m
            count += 1
    return count


@njit(cache=True, nogil=True)
def shade_plane(
    pixels: NDArray[np.int32],
    cells: NDArray[np.int32],
    place: Floats,
    lit: Bools,
    same: Bools,
    changed: Bytes,
    first: Floats,
    observed: Floats,
    now: Floats,
    strength: Doubles,
    rgb: Bytes,
) -> None:
    """Exchange the shadows on pixels of the plane in rgb (H, W, 3).

    Args:
        pixels: (P,) row x width + column of the pixels.
        cells: (P,) row x width + column of their nearest cell of the shadow maps.
        place: (P, 2) their exact row and column in the shadow maps.
        lit: (P,) whether the pixel has no shadow yet; the others, and those in `same`, have the first image's.
        same: (H, W) pixels around the robot that are those of the first image.
        changed: (h, w) cells in or near which a shadow may change.
        first, now: (h, w) cast shadows, 0 = lit to 1 = shadow, of the first image and of this frame.
        observed: (h, w) the shadow that the first image shows.
        strength: (3,) share of the linear light that a shadow takes.
        rgb: changed where the shadow changes.
    """
    height, width = now.shape
    flags = changed.reshape(-1)
    for p in range(len(pixels)):
        if flags[cells[p]] == 0:
            continue
        v, u = pixels[p] // rgb.shape[1], pixels[p] % rgb.shape[1]
        dark = not lit[p] or same[v, u]
        a, b = place[p, 0], place[p, 1]
        i, j = min(max(int(a), 0), height - 2), min(max(int(b), 0), width - 2)
        s, t = min(max(a - i, 0.0), 1.0), min(max(b - j, 0.0), 1.0)
        w00, w01, w10, w11 = (1.0 - s) * (1.0 - t), (1.0 - s) * t, s * (1.0 - t), s * t
        new = w00 * now[i, j] + w01 * now[i, j + 1] + w10 * now[i + 1, j] + w11 * now[i + 1, j + 1]
        old = gone = 0.0
        if dark:
            old = w00 * first[i, j] + w01 * first[i, j + 1] + w10 * first[i + 1, j] + w11 * first[i + 1, j + 1]
        if abs(new - old) < 0.02:
            continue
        if dark:
            gone = w00 * observed[i, j] + w01 * observed[i, j + 1]
            gone += w10 * observed[i + 1, j] + w11 * observed[i + 1, j + 1]
            # Where the shadow hardly changes, the one in the image stays as it is.
            new = min(max(new + (gone - old) * max(1.0 - abs(new - old) / 0.3, 0.0), 0.0), 1.0)
        for c in range(3):
            ratio = (1.0 - strength[c] * new) / (1.0 - strength[c] * gone)
            rgb[v, u, c] = np.uint8(min(rgb[v, u, c] * ratio ** (1.0 / 2.2) + 0.5, 255.0))


@njit(cache=True, nogil=True)
def _normal_at(xyz: Floats, ids: Bytes, v: int, u: int, base_R: Doubles, out: Floats) -> None:
    """Write the normal (3,) of a robot pixel, base frame, towards the camera, from neighbours in the same link."""
    height, width = ids.shape
    i = ids[v, u]
    left = u - 1 if u > 0 and ids[v, u - 1] == i else u
    right = u + 1 if u + 1 < width and ids[v, u + 1] == i else u
    above = v - 1 if v > 0 and ids[v - 1, u] == i else v
    below = v + 1 if v + 1 < height and ids[v + 1, u] == i else v
    ax = np.float64(xyz[v, right, 0]) - xyz[v, left, 0]
    ay = np.float64(xyz[v, right, 1]) - xyz[v, left, 1]
    az = np.float64(xyz[v, right, 2]) - xyz[v, left, 2]
    bx = np.float64(xyz[below, u, 0]) - xyz[above, u, 0]
    by = np.float64(xyz[below, u, 1]) - xyz[above, u, 1]
    bz = np.float64(xyz[below, u, 2]) - xyz[above, u, 2]
    x, y, z = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
    if x * xyz[v, u, 0] + y * xyz[v, u, 1] + z * xyz[v, u, 2] > 0.0:
        x, y, z = -x, -y, -z
    norm = np.sqrt(x * x + y * y + z * z)
    if norm == 0.0:
        x, y, z = -np.float64(xyz[v, u, 0]), -np.float64(xyz[v, u, 1]), -np.float64(xyz[v, u, 2])
        norm = np.sqrt(x * x + y * y + z * z)
    for k in range(3):
        out[k] = np.float32((base_R[k, 0] * x + base_R[k, 1] * y + base_R[k, 2] * z) / norm)


@njit(cache=True, nogil=True)
def robot_normals(xyz: Floats, ids: Bytes, base_R: Doubles, out: Floats) -> None:
    """Write normals (H, W, 3), base frame, towards the camera; 0 = no robot."""
    for v in range(ids.shape[0]):
        for u in range(ids.shape[1]):
            if ids[v, u] == 0:
                out[v, u] = 0.0
            else:
                _normal_at(xyz, ids, v, u, base_R, out[v, u])


@njit(cache=True, nogil=True)
def _level(n: Floats, shaded: Bytes, shape: Doubles, key: Doubles, c: int) -> float:
    """Return the relative light on a normal (3,), base frame, in one channel; `shaded` (3,) is the rendered colour."""
    lamp = max(n[0] * key[0] + n[1] * key[1] + n[2] * key[2], 0.0)
    bright = (np.float64(shaded[0]) + shaded[1] + shaded[2]) / 765.0
    level = shape[0, c] + shape[1, c] * n[0] + shape[2, c] * n[1] + shape[3, c] * n[2]
    return float(max(level + shape[4, c] * lamp + shape[5, c] * bright, 0.02))


@njit(cache=True, nogil=True)
def paint_robot(
    xyz: Floats, ids: Bytes, shaded: Bytes, base_R: Doubles, gains: Doubles, shape: Doubles, key: Doubles,
    encode: Bytes, image: Bytes, same: Bools, first_T_now: Doubles, K: Doubles, first_xyz: Floats,
    first_normals: Floats, first_ids: Bytes, first_shaded: Bytes, own: Bytes, out: Bytes,
) -> None:  # fmt: skip
    """Colour the robot's pixels of one frame into out (H, W, 3).

    Where `same` (H, W), the robot has the pixels of the image. Elsewhere it has the colour of the same point of its
    link in the first image, `own`, scaled by the light on both normals, where it was visible there; and otherwise gains
    (256, 3) by link id times the light on the normal, `shape` (6, 3).

    `shaded` (H, W, 3) is the rendered robot, `base_R` (3, 3) rotates camera to base, `key` (3,) is the direction of the
    lamp, `encode` (N,) has 8-bit values of linear light from 0 to 1. `first_T_now` (256, 3, 4) maps a link's points of
    this frame, camera frame, to those of frame 0; empty = not known.
    """
    height, width = ids.shape
    last = len(encode) - 1
    normal = np.empty(3, np.float32)
    for v in range(height):
        for u in range(width):
            i = ids[v, u]
            if i == 0:
                continue
            if same[v, u]:
                for c in range(3):
                    out[v, u, c] = image[v, u, c]
                continue
            _normal_at(xyz, ids, v, u, base_R, normal)
            a, b, z = -1, -1, 0.0
            if len(first_T_now) > 0:
                M, p = first_T_now[i], xyz[v, u]
                z = M[2, 0] * p[0] + M[2, 1] * p[1] + M[2, 2] * p[2] + M[2, 3]
                if z > _NEAR_M:
                    x = M[0, 0] * p[0] + M[0, 1] * p[1] + M[0, 2] * p[2] + M[0, 3]
                    y = M[1, 0] * p[0] + M[1, 1] * p[1] + M[1, 2] * p[2] + M[1, 3]
                    b = int(np.floor((K[0, 0] * x + K[0, 1] * y) / z + K[0, 2]))
                    a = int(np.floor(K[1, 1] * y / z + K[1, 2]))
            if (
                0 <= a < height
                and 0 <= b < width
                and first_ids[a, b] == i
                and not abs(first_xyz[a, b, 2] - z) > _HIDDEN_M
            ):
                before = _level(first_normals[a, b], first_shaded[a, b], shape, key, 1)
                now = _level(normal, shaded[v, u], shape, key, 1)
                ratio = min(max(now / before, 0.4), 2.5) ** (1.0 / 2.2)
                for c in range(3):
                    out[v, u, c] = np.uint8(min(own[a, b, c] * ratio + 0.5, 255.0))
                continue
            for c in range(3):
                level = _level(normal, shaded[v, u], shape, key, c) * gains[i, c]
                out[v, u, c] = encode[min(int(level * last), last)]


@njit(cache=True, nogil=True)
def compose_over(
    robot_xyz: Floats, robot_ids: Bytes, robot_rgb: Bytes, soft: bool, rgb: Bytes, xyz: Floats, mask: Bools,
    basis: Bytes,
) -> None:  # fmt: skip
    """Composite the robot into a frame (H, W[, 3]) in place with a z-test, with soft borders in the image."""
    height, width = robot_ids.shape
    top, bottom, left, right = height, -1, width, -1
    for v in range(height):
        mask[v] = False
        for u in range(width):
            # This form of the comparison never lets a missing scene point (NaN) hide the robot.
            if robot_ids[v, u] == 0 or robot_xyz[v, u, 2] > xyz[v, u, 2]:
                continue
            mask[v, u] = True
            top, bottom, left, right = min(top, v), max(bottom, v), min(left, u), max(right, u)
    for v in range(max(0, top - 1), min(height, bottom + 2)):
        for u in range(max(0, left - 1), min(width, right + 2)):
            here = mask[v, u]
            inner = 0 < v < height - 1 and 0 < u < width - 1
            border = (
                soft
                and inner
                and (
                    mask[v - 1, u] != here or mask[v + 1, u] != here or mask[v, u - 1] != here or mask[v, u + 1] != here
                )
            )
            if border:
                share = red = green = blue = 0.0
                for dv in range(-1, 2):
                    for du in range(-1, 2):
                        if mask[v + dv, u + du]:
                            weight = (2.0 - abs(dv)) * (2.0 - abs(du)) / 16.0
                            share += weight
                            red += weight * robot_rgb[v + dv, u + du, 0]
                            green += weight * robot_rgb[v + dv, u + du, 1]
                            blue += weight * robot_rgb[v + dv, u + du, 2]
                rest = 1.0 - share
                rgb[v, u, 0] = np.uint8(red + rest * rgb[v, u, 0] + 0.5)
                rgb[v, u, 1] = np.uint8(green + rest * rgb[v, u, 1] + 0.5)
                rgb[v, u, 2] = np.uint8(blue + rest * rgb[v, u, 2] + 0.5)
            elif here:
                for c in range(3):
                    rgb[v, u, c] = robot_rgb[v, u, c]
            if here:
                for c in range(3):
                    xyz[v, u, c] = robot_xyz[v, u, c]
                basis[v, u] = _ROBOT

"""Compiled shading of images: soft shadows, ambient occlusion, highlights, reflections, anti-aliasing.

The rasteriser draws at twice the size and stores a face for every subsample. An output pixel whose four
subsamples lie on one smooth surface is shaded once; other pixels, at edges, four times.

All compiled functions are in this file, because numba's cache detects changes only in the file of the called
function. The argument types (`picture.Drawing`) are part of that cache: after moving one of them, delete
`__pycache__`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["Light", "Looks", "gather_shadow", "light_picture", "occlude"]


class Looks(NamedTuple):
    """Appearance of the surfaces.

    Attributes:
        materials: (P, 6) float64 by part: linear RGB, mirror, gloss, 1 = textured.
        texture: (N, N, 3) float32 linear colours of the table.
        table: (4,) float64: x0, 1 / width, y0, 1 / depth, metres, base frame.
        curve: (M,) uint8, 8-bit sRGB of linear light in steps of 1/256.
    """

    materials: NDArray[np.float64]
    texture: NDArray[np.float32]
    table: NDArray[np.float64]
    curve: NDArray[np.uint8]


class Light(NamedTuple):
    """Light sources and the shadow map.

    Attributes:
        base_R: (3, 3) rotates camera directions to base directions.
        position: (3,) of the lamp, metres, camera frame.
        rgb: (4,) colour and strength of the lamp.
        ambient: (7,) RGB of light from above, RGB of light from below, strength of reflections.
        background: (3,) linear colour of pixels without a surface.
        lamp_T_camera: (3, 4) float64.
        lens: (3,) focal length and centre of the shadow map in pixels, radius of the lamp in metres.
        depth: (N, N) float32 shadow map, metres along the lamp's axis.
        nearest, farthest: (n, n) float32, extremes of `depth` around each cell.
    """

    base_R: NDArray[np.float64]
    position: NDArray[np.float64]
    rgb: NDArray[np.float64]
    ambient: NDArray[np.float64]
    background: NDArray[np.float64]
    lamp_T_camera: NDArray[np.float64]
    lens: NDArray[np.float64]
    depth: NDArray[np.float32]
    nearest: NDArray[np.float32]
    farthest: NDArray[np.float32]


_TAPS = 10
_SHADOW_TAPS = 16
_TURNS = 8


def _spiral(count: int, power: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Compute (turns, count, 2) points of the unit disc on a sunflower spiral, in several rotations against banding."""
    i = np.arange(count) + 0.5
    angle = 2.399963 * i + 2 * np.pi * np.arange(_TURNS)[:, None] / _TURNS
    radius = (i / count) ** power
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)


_SHADOW_SPIRAL = _spiral(_SHADOW_TAPS, 0.5)
_SKY_SPIRAL = _spiral(_TAPS, 1.0)
_AO_RADIUS_M = 0.035
_EXPOSURE = 1.0


def _jit(**options: Any) -> Any:
    """Apply `numba.njit` with a cache on disk, or in memory only where no cache folder is writable."""

    def decorate(function: Any) -> Any:
        settings = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "arcp", "nsz"}, **options}
        try:
            return numba.njit(cache=True, **settings)(function)
        except RuntimeError:
            return numba.njit(**settings)(function)

    return decorate


@_jit()
def _surface(drawing, row, column, out, slot):  # type: ignore[no-untyped-def]
    """Write into out[slot] (6,): the smooth normal at a pixel, camera frame, and the point in the link frame.

    Arrays are indexed in place in this file: a view of a row costs more than the arithmetic on it.
    """
    packed, xyz, poses = drawing.packed, drawing.xyz, drawing.camera_T_link
    f, link = drawing.face[row, column], drawing.ids[row, column] - 1
    c = drawing.face_cluster[f]
    start, first = packed.vertex_start[c], packed.normal_start[c]
    t00, t01, t02 = poses[link, 0, 0], poses[link, 0, 1], poses[link, 0, 2]
    t10, t11, t12 = poses[link, 1, 0], poses[link, 1, 1], poses[link, 1, 2]
    t20, t21, t22 = poses[link, 2, 0], poses[link, 2, 1], poses[link, 2, 2]
    dx, dy = xyz[row, column, 0] - poses[link, 0, 3], xyz[row, column, 1] - poses[link, 1, 3]
    dz = xyz[row, column, 2] - poses[link, 2, 3]
    x = t00 * dx + t10 * dy + t20 * dz
    y = t01 * dx + t11 * dy + t21 * dz
    z = t02 * dx + t12 * dy + t22 * dz
    i, j, k = start + packed.faces[f, 0], start + packed.faces[f, 1], start + packed.faces[f, 2]
    ax, ay, az = packed.x[i], packed.y[i], packed.z[i]
    ux, uy, uz = packed.x[j] - ax, packed.y[j] - ay, packed.z[j] - az
    vx, vy, vz = packed.x[k] - ax, packed.y[k] - ay, packed.z[k] - az
    wx, wy, wz = x - ax, y - ay, z - az
    uu, uv, vv = ux * ux + uy * uy + uz * uz, ux * vx + uy * vy + uz * vz, vx * vx + vy * vy + vz * vz
    wu, wv = wx * ux + wy * uy + wz * uz, wx * vx + wy * vy + wz * vz
    area = max(uu * vv - uv * uv, 1e-30)
    b = min(max((vv * wu - uv * wv) / area, 0.0), 1.0)
    g = min(max((uu * wv - uv * wu) / area, 0.0), 1.0 - b)
    a = 1.0 - b - g
    i, j, k = first + packed.tones[f, 0], first + packed.tones[f, 1], first + packed.tones[f, 2]
    normals = packed.normals
    nx = a * normals[i, 0] + b * normals[j, 0] + g * normals[k, 0]
    ny = a * normals[i, 1] + b * normals[j, 1] + g * normals[k, 1]
    nz = a * normals[i, 2] + b * normals[j, 2] + g * normals[k, 2]
    length = 1.0 / max(math.sqrt(nx * nx + ny * ny + nz * nz), 1e-12)
    out[slot, 0] = (t00 * nx + t01 * ny + t02 * nz) * length
    out[slot, 1] = (t10 * nx + t11 * ny + t12 * nz) * length
    out[slot, 2] = (t20 * nx + t21 * ny + t22 * nz) * length
    out[slot, 3], out[slot, 4], out[slot, 5] = x, y, z


@_jit()
def _lit(px, py, pz, surface, slot, light, turn):  # type: ignore[no-untyped-def]
    """Compute the visible share of the lamp at a point, 0 to 1, for soft shadows."""
    focal, center, radius = light.lens[0], light.lens[1], light.lens[2]
    T, depth, nearest, farthest = light.lamp_T_camera, light.depth, light.nearest, light.farthest
    # Offset along the normal against self-shadowing.
    x, y, z = px + 0.0025 * surface[slot, 0], py + 0.0025 * surface[slot, 1], pz + 0.0025 * surface[slot, 2]
    lx = T[0, 0] * x + T[0, 1] * y + T[0, 2] * z + T[0, 3]
    ly = T[1, 0] * x + T[1, 1] * y + T[1, 2] * z + T[1, 3]
    lz = T[2, 0] * x + T[2, 1] * y + T[2, 2] * z + T[2, 3]
    size = depth.shape[0]
    if lz <= 0.05:
        return 1.0
    u, v = focal * lx / lz + center, focal * ly / lz + center
    if not (1.0 <= u < size - 2.0 and 1.0 <= v < size - 2.0):
        return 1.0
    limit = lz - 0.0025
    cells = nearest.shape[0]
    cu, cv = int(u) * cells // size, int(v) * cells // size
    blocker = nearest[cv, cu]
    if blocker > limit:
        return 1.0
    if farthest[cv, cu] < limit:
        return 0.0
    # The penumbra grows with the distance between the blocker and the shaded point.
    spread = min(max(radius * (lz - blocker) / blocker * focal / lz, 1.2), 14.0 * size / 1024.0)
    seen = 0.0
    for i in range(_SHADOW_TAPS):
        su, sv = int(u + spread * _SHADOW_SPIRAL[turn, i, 0]), int(v + spread * _SHADOW_SPIRAL[turn, i, 1])
        su, sv = min(max(su, 0), size - 1), min(max(sv, 0), size - 1)
        if depth[sv, su] > limit:
            seen += 1.0
    return seen / _SHADOW_TAPS


@_jit()
def _room(x, y, z, gloss):  # type: ignore[no-untyped-def]
    """Compute the brightness of the room in a direction of the base frame: floor, walls, and two soft boxes above."""
    soft = 0.35 / (1.0 + 0.03 * gloss) + 0.04
    base = 0.16 + 0.24 * min(max(0.5 + 0.5 * z / (soft + 0.5), 0.0), 1.0)
    if z <= 0.02:
        return base
    ceiling_x, ceiling_y = x / z, y / z
    box = 0.0
    for k in range(2):
        cx, cy = (0.6, -0.9) if k == 0 else (-0.9, 0.5)
        ex = min(max((0.65 + soft - abs(ceiling_x - cx)) / (2.0 * soft), 0.0), 1.0)
        ey = min(max((0.40 + soft - abs(ceiling_y - cy)) / (2.0 * soft), 0.0), 1.0)
        box += (1.9 if k == 0 else 1.1) * ex * ey
    return base + box


@_jit()
def _lookup(texture, u, v, out):  # type: ignore[no-untyped-def]
    """Write the texture's colour at u, v (0 to 1) into out (3,)."""
    n = texture.shape[0]
    x, y = min(max(u * n - 0.5, 0.0), n - 1.001), min(max(v * n - 0.5, 0.0), n - 1.001)
    i, j = int(x), int(y)
    s, t = x - i, y - j
    a, b, c, d = (1.0 - s) * (1.0 - t), s * (1.0 - t), (1.0 - s) * t, s * t
    for k in range(3):
        out[k] = (
            a * texture[j, i, k] + b * texture[j, i + 1, k] + c * texture[j + 1, i, k] + d * texture[j + 1, i + 1, k]
        )


@_jit()
def _shade(px, py, pz, surface, slot, looks, part, light, lit, open_sky, out):  # type: ignore[no-untyped-def]
    """Write linear RGB into out (3,) for a point in the camera frame; its normal is in `surface[slot]`."""
    materials, table, base_R = looks.materials, looks.table, light.base_R
    lamp_position, lamp_rgb, ambient = light.position, light.rgb, light.ambient
    nx, ny, nz = surface[slot, 0], surface[slot, 1], surface[slot, 2]
    length = 1.0 / math.sqrt(px * px + py * py + pz * pz)
    vx, vy, vz = -px * length, -py * length, -pz * length
    facing = nx * vx + ny * vy + nz * vz
    if facing < 0.0:
        # Smoothed normals may face away from the camera at outlines.
        nx, ny, nz = nx - facing * vx, ny - facing * vy, nz - facing * vz
        norm = 1.0 / max(math.sqrt(nx * nx + ny * ny + nz * nz), 1e-9)
        nx, ny, nz, facing = nx * norm, ny * norm, nz * norm, 0.0
    lx, ly, lz = lamp_position[0] - px, lamp_position[1] - py, lamp_position[2] - pz
    distance2 = lx * lx + ly * ly + lz * lz
    norm = 1.0 / math.sqrt(distance2)
    lx, ly, lz = lx * norm, ly * norm, lz * norm
    key = max(nx * lx + ny * ly + nz * lz, 0.0) * lamp_rgb[3] / distance2
    hx, hy, hz = lx + vx, ly + vy, lz + vz
    norm = 1.0 / max(math.sqrt(hx * hx + hy * hy + hz * hz), 1e-9)
    half = max((nx * hx + ny * hy + nz * hz) * norm, 0.0)
    gloss = materials[part, 4]
    up = base_R[2, 0] * nx + base_R[2, 1] * ny + base_R[2, 2] * nz
    shine = mirrored = 0.0
    if materials[part, 3] > 0.0:
        away = 1.0 - facing
        away *= away * away * away * away
        mirror = materials[part, 3] + (1.0 - materials[part, 3]) * away * min(gloss / 60.0, 1.0) * 0.5
        if gloss * (1.0 - half) < 7.0:
            shine = half**gloss * (gloss + 8.0) * 0.16 * materials[part, 3] * math.sqrt(key * lamp_rgb[3] / distance2)
        rx, ry, rz = 2.0 * facing * nx - vx, 2.0 * facing * ny - vy, 2.0 * facing * nz - vz
        wx = base_R[0, 0] * rx + base_R[0, 1] * ry + base_R[0, 2] * rz
        wy = base_R[1, 0] * rx + base_R[1, 1] * ry + base_R[1, 2] * rz
        wz = base_R[2, 0] * rx + base_R[2, 1] * ry + base_R[2, 2] * rz
        mirrored = mirror * _room(wx, wy, wz, gloss) * (0.35 + 0.65 * open_sky) * ambient[6]
    sky = 0.5 + 0.5 * up
    if materials[part, 5] > 0.0:
        _lookup(looks.texture, (surface[slot, 3] - table[0]) * table[1], (surface[slot, 4] - table[2]) * table[3], out)
    else:
        out[0], out[1], out[2] = materials[part, 0], materials[part, 1], materials[part, 2]
    for k in range(3):
        soft = (ambient[k] * sky + ambient[3 + k] * (1.0 - sky)) * open_sky
        out[k] = out[k] * (soft + key * lit * lamp_rgb[k]) + mirrored + shine * lit * lamp_rgb[k]


@_jit()
def occlude(xyz, normals_step, focal, sky):  # type: ignore[no-untyped-def]
    """Fill sky (h, w) with the ambient visibility, 0 to 1, of every `normals_step`-th pixel.

    Normals come from neighbouring points; nearby surfaces above the tangent plane reduce the visibility.
    """
    height, width = sky.shape
    step = normals_step
    for y in range(height):
        for x in range(width):
            py, px = min(y * step, xyz.shape[0] - 2), min(x * step, xyz.shape[1] - 2)
            cx, cy, z = xyz[py, px, 0], xyz[py, px, 1], xyz[py, px, 2]
            sky[y, x] = 1.0
            if not z > 0.0:
                continue
            # At an outline, the neighbour closer in depth lies on the same surface.
            ax, by = 1, 1
            if px > 0 and not abs(xyz[py, px + 1, 2] - z) <= abs(xyz[py, px - 1, 2] - z):
                ax = -1
            if py > 0 and not abs(xyz[py + 1, px, 2] - z) <= abs(xyz[py - 1, px, 2] - z):
                by = -1
            ux, uy = (xyz[py, px + ax, 0] - cx) * ax, (xyz[py, px + ax, 1] - cy) * ax
            uz = (xyz[py, px + ax, 2] - z) * ax
            vx, vy = (xyz[py + by, px, 0] - cx) * by, (xyz[py + by, px, 1] - cy) * by
            vz = (xyz[py + by, px, 2] - z) * by
            nx, ny, nz = vy * uz - vz * uy, vz * ux - vx * uz, vx * uy - vy * ux
            norm = math.sqrt(nx * nx + ny * ny + nz * nz)
            if not norm > 0.0:
                continue
            nx, ny, nz = nx / norm, ny / norm, nz / norm
            radius = focal * _AO_RADIUS_M / z
            turn = (3 * x + 5 * y) & (_TURNS - 1)
            total = 0.0
            for i in range(_TAPS):
                qx, qy = int(px + radius * _SKY_SPIRAL[turn, i, 0]), int(py + radius * _SKY_SPIRAL[turn, i, 1])
                if 0 <= qx < xyz.shape[1] and 0 <= qy < xyz.shape[0]:
                    dx, dy, dz = xyz[qy, qx, 0] - cx, xyz[qy, qx, 1] - cy, xyz[qy, qx, 2] - z
                    rise = dx * nx + dy * ny + dz * nz - 0.002
                    d2 = dx * dx + dy * dy + dz * dz
                    if rise > 0.0 and d2 < 4.0 * _AO_RADIUS_M * _AO_RADIUS_M:
                        distance = math.sqrt(d2)
                        total += max(rise - 0.01 * distance, 0.0) / (distance + 0.004)
            sky[y, x] = max(1.0 - 1.5 * total / _TAPS, 0.15)


@_jit()
def gather_shadow(xyz, ids, depth, nearest, farthest):  # type: ignore[no-untyped-def]
    """Fill depth (N, N) from the lamp's drawing, 100 m where nothing is, and its extremes by cell (n, n)."""
    size = depth.shape[0] // nearest.shape[0]
    for i in range(nearest.shape[0]):
        for j in range(nearest.shape[1]):
            low, high = np.float32(100.0), np.float32(0.0)
            for y in range(i * size, (i + 1) * size):
                for x in range(j * size, (j + 1) * size):
                    z = xyz[y, x, 2] if ids[y, x] > 0 else np.float32(100.0)
                    depth[y, x] = z
                    low, high = min(low, z), max(high, z)
            nearest[i, j], farthest[i, j] = low, high


@_jit()
def _tone(value, curve):  # type: ignore[no-untyped-def]
    n = len(curve) - 1
    return curve[min(int(max(value * _EXPOSURE, 0.0) * 256.0), n)]


@_jit()
def light_picture(drawing, looks, light, sky, rgb, first_row, last_row):  # type: ignore[no-untyped-def]
    """Fill rows of rgb (H, W, 3) uint8 from a drawing at (2 H, 2 W); sky is the result of `occlude` for it."""
    ids, face, xyz = drawing.ids, drawing.face, drawing.xyz
    cluster_part, face_cluster = drawing.packed.cluster_part, drawing.face_cluster
    height, width = rgb.shape[:2]
    surface = np.zeros((4, 6))
    colour = np.zeros(3)
    total = np.zeros(3)
    sky_scale = sky.shape[0] / height
    for y in range(first_row, last_row):
        sky_y = min(int(y * sky_scale), sky.shape[0] - 1)
        for x in range(width):
            open_sky = sky[sky_y, min(int(x * sky_scale), sky.shape[1] - 1)]
            turn = (x * 7 + y * 3) & (_TURNS - 1)
            top, low = 2 * y, 2 * y + 1
            left, right = 2 * x, 2 * x + 1
            i = ids[top, left]
            f = face[top, left]
            # Fast path: large flat faces cover most of the image, and all four subsamples have the same face.
            smooth = ids[top, right] == i and ids[low, left] == i and ids[low, right] == i
            if i > 0:
                _surface(drawing, top, left, surface, 0)
            whole = smooth and face[top, right] == f and face[low, left] == f and face[low, right] == f
            for k in range(1, 1 if whole or (smooth and i == 0) else 4):
                sy, sx = top + (k >> 1), left + (k & 1)
                if ids[sy, sx] > 0:
                    _surface(drawing, sy, sx, surface, k)
                    same = surface[k, 0] * surface[0, 0] + surface[k, 1] * surface[0, 1]
                    smooth &= same + surface[k, 2] * surface[0, 2] > 0.985
            total[:] = 0.0
            count = 1 if smooth else 4
            for k in range(count):
                sy, sx = 2 * y + (k >> 1), 2 * x + (k & 1)
                i = ids[sy, sx]
                if i == 0:
                    for j in range(3):
                        total[j] += min(light.background[j], 1.0)
                    continue
                px, py, pz = float(xyz[sy, sx, 0]), float(xyz[sy, sx, 1]), float(xyz[sy, sx, 2])
                part = cluster_part[face_cluster[face[sy, sx]]]
                lit = _lit(px, py, pz, surface, k, light, turn)
                _shade(px, py, pz, surface, k, looks, part, light, lit, open_sky, colour)
                for j in range(3):
                    # Clip before averaging, so that highlights do not cause jagged outlines.
                    total[j] += min(colour[j], 1.5)
            for j in range(3):
                rgb[y, x, j] = _tone(total[j] / count, looks.curve)

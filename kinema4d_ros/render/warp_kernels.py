# mypy: ignore-errors
# Warp reads the annotations as its own types, which no type checker knows.
"""NVIDIA Warp kernels of the rasteriser in `numba_raster`, one thread per triangle."""

from __future__ import annotations

import warp as wp

__all__ = ["draw_faces", "resolve", "shade"]

wp.config.log_level = wp.LOG_ERROR
# With fused multiply-add the two faces of an edge would compute different points on it.
wp.set_module_options({"fuse_fp": False, "enable_backward": False})


@wp.func
def _corner(M: wp.array3d(dtype=wp.float64), t: int, part: int, p: wp.vec3d) -> wp.vec3d:
    return wp.vec3d(
        M[t, part, 0] * p[0] + M[t, part, 1] * p[1] + M[t, part, 2] * p[2] + M[t, part, 3],
        M[t, part, 4] * p[0] + M[t, part, 5] * p[1] + M[t, part, 6] * p[2] + M[t, part, 7],
        M[t, part, 8] * p[0] + M[t, part, 9] * p[1] + M[t, part, 10] * p[2] + M[t, part, 11],
    )


@wp.func
def _project(p: wp.vec3d) -> wp.vec3d:
    inverse = wp.float64(1.0) / p[2]
    return wp.vec3d(p[0] * inverse, p[1] * inverse, inverse)


@wp.func
def _cut(a: wp.vec3d, b: wp.vec3d, near: wp.float64) -> wp.vec3d:
    """Compute the projected intersection of the edge from the visible corner a to b with the near plane."""
    s = (near - a[2]) / (b[2] - a[2])
    inverse = wp.float64(1.0) / near
    return wp.vec3d((a[0] + s * (b[0] - a[0])) * inverse, (a[1] + s * (b[1] - a[1])) * inverse, inverse)


@wp.func
def _pixel(x: wp.float64, end: int) -> int:
    """Return the first pixel centre at or after x, within [0, end]."""
    return int(wp.ceil(wp.clamp(x, wp.float64(0.0), wp.float64(end))))


@wp.func
def _draw(pa: wp.vec3d, pb: wp.vec3d, pc: wp.vec3d, culls: bool, t: int, face: int, keys: wp.array3d(dtype=wp.uint64)):
    """Draw one projected triangle."""
    a, b, c = pa, pb, pc
    area = (b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1])
    if area == wp.float64(0.0) or (culls and area > wp.float64(0.0)):
        return
    height, width = keys.shape[1], keys.shape[2]
    y0 = _pixel(wp.min(wp.min(a[1], b[1]), c[1]), height)
    y1 = _pixel(wp.max(wp.max(a[1], b[1]), c[1]), height)
    x0 = _pixel(wp.min(wp.min(a[0], b[0]), c[0]), width)
    x1 = _pixel(wp.max(wp.max(a[0], b[0]), c[0]), width)
    if y0 >= y1 or x0 >= x1:
        return
    low, high = wp.min(wp.min(a[2], b[2]), c[2]), wp.max(wp.max(a[2], b[2]), c[2])
    inverse = wp.float64(1.0) / area
    w_du = ((b[2] - a[2]) * (c[1] - a[1]) - (c[2] - a[2]) * (b[1] - a[1])) * inverse
    w_dv = ((c[2] - a[2]) * (b[0] - a[0]) - (b[2] - a[2]) * (c[0] - a[0])) * inverse
    if a[1] > b[1]:
        a, b = b, a
    if b[1] > c[1]:
        b, c = c, b
    if a[1] > b[1]:
        a, b = b, a
    slope_ac = (c[0] - a[0]) / (c[1] - a[1])
    slope_ab = (b[0] - a[0]) / (b[1] - a[1])
    slope_bc = (c[0] - b[0]) / (c[1] - b[1])
    rank = wp.uint64(4294967295) - wp.uint64(face)
    for y in range(y0, y1):
        v = wp.float64(y)
        long_u = a[0] + (v - a[1]) * slope_ac
        short_u = a[0] + (v - a[1]) * slope_ab
        if v >= b[1]:
            short_u = b[0] + (v - b[1]) * slope_bc
        w_row = pa[2] + (v - pa[1]) * w_dv
        for x in range(_pixel(wp.min(long_u, short_u), width), _pixel(wp.max(long_u, short_u), width)):
            w = wp.float32(wp.min(wp.max(w_row + (wp.float64(x) - pa[0]) * w_du, low), high))
            wp.atomic_max(keys, t, y, x, (wp.uint64(wp.cast(w, wp.uint32)) << wp.uint64(32)) | rank)


@wp.kernel
def draw_faces(
    vertices: wp.array(dtype=wp.vec3d),
    faces: wp.array2d(dtype=wp.int32),
    face_part: wp.array(dtype=wp.int32),
    parts: wp.array3d(dtype=wp.float64),
    near: wp.float64,
    keys: wp.array3d(dtype=wp.uint64),
):
    """Draw every face of every frame into `keys`, cut at the near plane."""
    t, f = wp.tid()
    part = face_part[f]
    culls = parts[t, part, 15] > wp.float64(0.0)
    a = _corner(parts, t, part, vertices[faces[f, 0]])
    b = _corner(parts, t, part, vertices[faces[f, 1]])
    c = _corner(parts, t, part, vertices[faces[f, 2]])
    inside = int(a[2] >= near) + int(b[2] >= near) + int(c[2] >= near)
    if inside == 3:
        _draw(_project(a), _project(b), _project(c), culls, t, f, keys)
    if inside == 2:
        for _ in range(2):
            if c[2] >= near:
                a, b, c = b, c, a
        bc, ac = _cut(b, c, near), _cut(a, c, near)
        _draw(_project(a), _project(b), bc, culls, t, f, keys)
        _draw(_project(a), bc, ac, culls, t, f, keys)
    if inside == 1:
        for _ in range(2):
            if a[2] < near:
                a, b, c = b, c, a
        _draw(_project(a), _cut(a, b, near), _cut(a, c, near), culls, t, f, keys)


@wp.kernel
def resolve(
    keys: wp.array3d(dtype=wp.uint64),
    face_part: wp.array(dtype=wp.int32),
    part_link: wp.array(dtype=wp.int32),
    camera: wp.array(dtype=wp.float64),
    xyz: wp.array4d(dtype=wp.float32),
    ids: wp.array3d(dtype=wp.uint8),
    face_of: wp.array3d(dtype=wp.int32),
):
    """Write XYZ, link ids and, optionally, the face of every pixel (-1 = none)."""
    t, y, x = wp.tid()
    key = keys[t, y, x]
    z = wp.float32(wp.nan)
    face = wp.int32(-1)
    link = wp.int32(0)
    if key > wp.uint64(0):
        z = wp.float32(1.0) / wp.cast(wp.uint32(key >> wp.uint64(32)), wp.float32)
        face = int(wp.uint64(4294967295) - (key & wp.uint64(4294967295)))
        link = part_link[face_part[face]] + 1
    ray_y = (wp.float64(y) - camera[4]) / camera[3]
    shift = (camera[2] + camera[1] * ray_y) / camera[0]
    xyz[t, y, x, 0] = wp.float32(wp.float64(x) / camera[0] - shift) * z
    xyz[t, y, x, 1] = wp.float32(ray_y) * z
    xyz[t, y, x, 2] = z
    ids[t, y, x] = wp.uint8(link)
    if face_of.shape[0] > 0:
        face_of[t, y, x] = face


@wp.func
def _brightness(
    n: wp.vec3d, key: wp.vec3d, fill: wp.vec3d, view: wp.vec3d, closed: bool, lamps: wp.array(dtype=wp.float64)
) -> wp.float64:
    zero, one = wp.float64(0.0), wp.float64(1.0)
    facing = wp.dot(n, view)
    side = wp.where(closed or facing >= zero, one, -one)
    shine = wp.pow(wp.max(side * wp.dot(n, wp.normalize(key + view)), zero), wp.float64(32.0))
    rim = one - wp.clamp(side * facing, zero, one)
    lit = lamps[7] * wp.max(side * wp.dot(n, key), zero) + lamps[8] * wp.max(side * wp.dot(n, fill), zero)
    return lamps[6] + lit + lamps[9] * shine + lamps[10] * rim * rim * rim


@wp.kernel
def shade(
    face_of: wp.array3d(dtype=wp.int32),
    vertices: wp.array(dtype=wp.vec3d),
    faces: wp.array2d(dtype=wp.int32),
    normals: wp.array2d(dtype=wp.vec3),
    face_part: wp.array(dtype=wp.int32),
    face_center: wp.array(dtype=wp.vec3d),
    part_closed: wp.array(dtype=wp.int32),
    part_link: wp.array(dtype=wp.int32),
    parts: wp.array3d(dtype=wp.float64),
    camera_T_link: wp.array4d(dtype=wp.float64),
    lamps: wp.array(dtype=wp.float64),
    xyz: wp.array4d(dtype=wp.float32),
    colours: wp.array2d(dtype=wp.float32),
    rgb: wp.array4d(dtype=wp.uint8),
):
    """Write the colour of every pixel."""
    t, y, x = wp.tid()
    f = face_of[t, y, x]
    if f < 0:
        for j in range(3):
            rgb[t, y, x, j] = wp.uint8(0)
        return
    part = face_part[f]
    link = part_link[part]
    key, fill, p = wp.vec3d(), wp.vec3d(), wp.vec3d()
    for j in range(3):
        for i in range(3):
            R = camera_T_link[t, link, i, j]
            key[j] += R * lamps[i]
            fill[j] += R * lamps[3 + i]
            p[j] += R * (wp.float64(xyz[t, y, x, i]) - camera_T_link[t, link, i, 3])
    view = wp.normalize(wp.vec3d(parts[t, part, 12], parts[t, part, 13], parts[t, part, 14]) - face_center[f])
    a, b, c = vertices[faces[f, 0]], vertices[faces[f, 1]], vertices[faces[f, 2]]
    n = wp.cross(b - a, c - a)
    area = wp.max(wp.dot(n, n), wp.float64(1.0e-300))
    weight_b = wp.dot(wp.cross(p - a, c - a), n) / area
    weight_c = wp.dot(wp.cross(b - a, p - a), n) / area
    closed = part_closed[part] > 0
    sa = _brightness(wp.vec3d(normals[f, 0]), key, fill, view, closed, lamps)
    sb = _brightness(wp.vec3d(normals[f, 1]), key, fill, view, closed, lamps)
    sc = _brightness(wp.vec3d(normals[f, 2]), key, fill, view, closed, lamps)
    s = wp.float32(sa + weight_b * (sb - sa) + weight_c * (sc - sa))
    gloss = wp.max(s - 1.0, 0.0) * 255.0
    for j in range(3):
        rgb[t, y, x, j] = wp.uint8(wp.min(colours[f, j] * wp.clamp(s, 0.0, 1.0) + gloss, 255.0))

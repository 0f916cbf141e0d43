"""CPU rasteriser (numba) for one frame: XYZ, link ids and optional colours.

Coverage is computed in float64 without fused or reordered arithmetic, so two triangles that share an
edge agree on it to the last bit: no holes, no pixel drawn twice.

Coordinates: (u, v) has its integers at pixel centres; w = 1 / z in 1 / m, which is linear over the
image. A row at v belongs to an edge if v_top <= v < v_bottom, a pixel to a span if left <= u < right.

All compiled code is in this file, because numba's cache detects changes only in the file of the
called function. There are no parallel loops: threads share nothing and the process may fork.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

__all__ = ["place_parts", "render_frame"]

_PLANES = 5


def _jit(**options: Any) -> Any:
    """Apply `numba.njit` with a cache on disk, or without one if no cache folder is writable."""

    def decorate(function: Any) -> Any:
        settings = {"nogil": True, "error_model": "numpy", **options}
        try:
            return numba.njit(cache=True, **settings)(function)
        except RuntimeError:
            return numba.njit(**settings)(function)

    return decorate


@_jit()
def place_parts(packed, camera_T_link, camera, parts):  # type: ignore[no-untyped-def]
    """Fill `parts`: per part the projection (12), the eye in its frame (3), culling (1), planes (5 x 4)."""
    fx, skew, cx, fy, cy, width, height, near, near_reach = camera
    for p in range(len(packed.part_link)):
        T = camera_T_link[packed.part_link[p]]
        M = parts[p]
        for j in range(4):
            M[j] = fx * T[0, j] + skew * T[1, j] + cx * T[2, j]
            M[4 + j] = fy * T[1, j] + cy * T[2, j]
            M[8 + j] = T[2, j]
        outside = 0.0
        for j in range(3):
            eye = -(T[0, j] * T[0, 3] + T[1, j] * T[1, 3] + T[2, j] * T[2, 3])
            M[12 + j] = eye
            gap = max(packed.part_box[p, j] - eye, eye - packed.part_box[p, 3 + j], 0.0)
            outside += gap * gap
        # From inside, or cut by the near plane, back faces of a closed surface are visible.
        M[15] = 1.0 if packed.part_closed[p] and outside > near_reach * near_reach else 0.0
        for k in range(_PLANES):
            length = 0.0
            for j in range(4):
                if k == 0:
                    n = M[8 + j] - (near if j == 3 else 0.0)
                elif k == 1:
                    n = M[j] + M[8 + j]
                elif k == 2:
                    n = width * M[8 + j] - M[j]
                elif k == 3:
                    n = M[4 + j] + M[8 + j]
                else:
                    n = height * M[8 + j] - M[4 + j]
                M[16 + 4 * k + j] = n
                if j < 3:
                    length += n * n
            for j in range(4):
                M[16 + 4 * k + j] /= math.sqrt(length)


@_jit()
def _order_clusters(packed, parts, scratch):  # type: ignore[no-untyped-def]
    """Fill `scratch.order` with the clusters that may be visible, nearest first; return their number."""
    count = 0
    nearest, farthest = np.inf, -np.inf
    for c in range(len(packed.cluster_part)):
        M = parts[packed.cluster_part[c]]
        x, y, z, r = packed.sphere[c]
        if M[15] > 0.0:
            dx, dy, dz = x - M[12], y - M[13], z - M[14]
            ax, ay, az, sine = packed.cone[c]
            reach = dx * ax + dy * ay + dz * az - r
            if reach > 0.0 and reach * reach > sine * sine * (dx * dx + dy * dy + dz * dz):
                continue
        seen = True
        for k in range(16, 16 + 4 * _PLANES, 4):
            seen &= M[k] * x + M[k + 1] * y + M[k + 2] * z + M[k + 3] >= -r
        if seen:
            depth = M[8] * x + M[9] * y + M[10] * z + M[11] - r
            nearest, farthest = min(nearest, depth), max(farthest, depth)
            scratch.visible[count] = c
            scratch.depth[count] = depth
            count += 1
    bucket = scratch.bucket
    steps = len(bucket) - 1
    scale = (steps - 1) / max(farthest - nearest, 1e-9)
    bucket[:] = 0
    for i in range(count):
        bucket[int((scratch.depth[i] - nearest) * scale) + 1] += 1
    for b in range(steps):
        bucket[b + 1] += bucket[b]
    for i in range(count):
        b = int((scratch.depth[i] - nearest) * scale)
        scratch.order[bucket[b]] = scratch.visible[i]
        bucket[b] += 1
    return count


@_jit()
def _project(packed, M, first, end, scratch):  # type: ignore[no-untyped-def]
    """Fill `scratch.u, v, w` with a cluster's projected vertices; three loops were measured to be faster than one."""
    m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11 = M[:12]
    x, y, z = packed.x[first:end], packed.y[first:end], packed.z[first:end]
    u, v, w = scratch.u, scratch.v, scratch.w
    for i in range(end - first):
        w[i] = 1.0 / (m8 * x[i] + m9 * y[i] + m10 * z[i] + m11)
    for i in range(end - first):
        u[i] = (m0 * x[i] + m1 * y[i] + m2 * z[i] + m3) * w[i]
    for i in range(end - first):
        v[i] = (m4 * x[i] + m5 * y[i] + m6 * z[i] + m7) * w[i]


@_jit()
def _find_cells(scratch, count, width, height):  # type: ignore[no-untyped-def]
    """Fill `scratch.cell` with the first pixel centre at or after each vertex, within the image: v << 16 | u.

    The box of a face contains a pixel centre only if its corners differ in both halves.
    """
    right, bottom = float(width), float(height)
    u, v, cell = scratch.u, scratch.v, scratch.cell
    for i in range(count):
        a, b = u[i], v[i]
        a = a if a > 0.0 else 0.0
        b = b if b > 0.0 else 0.0
        a = a if a < right else right
        b = b if b < bottom else bottom
        cell[i] = np.int32(np.ceil(a)) | (np.int32(np.ceil(b)) << np.int32(16))


@_jit()
def _box(cell, count):  # type: ignore[no-untyped-def]
    """Compute the pixel rectangle x0, x1, y0, y1 of the first `count` vertices."""
    x0 = y0 = np.int32(0x7FFF)
    x1 = y1 = np.int32(0)
    for i in range(count):
        x, y = cell[i] & np.int32(0xFFFF), cell[i] >> np.int32(16)
        x0, x1 = min(x0, x), max(x1, x)
        y0, y1 = min(y0, y), max(y1, y)
    return x0, x1, y0, y1


@_jit(fastmath={"nnan", "nsz"})
def _range(w, count):  # type: ignore[no-untyped-def]
    """Compute the minimum and maximum of the first `count` values."""
    low, high = w[0], w[0]
    for i in range(count):
        low, high = min(low, w[i]), max(high, w[i])
    return low, high


@_jit()
def _hidden(inverse_z, x0, x1, y0, y1, w):  # type: ignore[no-untyped-def]
    """Check whether all pixels in the rectangle are already nearer than w."""
    for y in range(y0, y1):
        row = inverse_z[y]
        open_pixels = 0
        for x in range(x0, x1):
            open_pixels += row[x] <= w
        if open_pixels > 0:
            return False
    return True


@_jit()
def _clip(packed, M, c, near, shaded, scratch):  # type: ignore[no-untyped-def]
    """Clip a cluster's faces at z = near into `scratch.corners`; return the number of faces.

    Both faces of a shared edge cut it from its visible end, so they get the same point.
    """
    faces, vertices = 0, 0
    start = packed.vertex_start[c]
    corner = np.empty((3, 4))
    for f in range(packed.face_start[c], packed.face_start[c + 1]):
        for k in range(3):
            i = start + packed.faces[f, k]
            x, y, z = packed.x[i], packed.y[i], packed.z[i]
            corner[k, 0] = M[0] * x + M[1] * y + M[2] * z + M[3]
            corner[k, 1] = M[4] * x + M[5] * y + M[6] * z + M[7]
            corner[k, 2] = M[8] * x + M[9] * y + M[10] * z + M[11]
            corner[k, 3] = scratch.light[packed.tones[f, k]] if shaded else 0.0
        first = vertices
        for k in range(3):
            a, b = corner[k], corner[(k + 1) % 3]
            if a[2] >= near:
                inverse = 1.0 / a[2]
                scratch.u[vertices] = a[0] * inverse
                scratch.v[vertices] = a[1] * inverse
                scratch.w[vertices] = inverse
                scratch.tone[vertices] = a[3]
                vertices += 1
            if (a[2] >= near) != (b[2] >= near):
                if a[2] < near:
                    a, b = b, a
                t = (near - a[2]) / (b[2] - a[2])
                inverse = 1.0 / near
                scratch.u[vertices] = (a[0] + t * (b[0] - a[0])) * inverse
                scratch.v[vertices] = (a[1] + t * (b[1] - a[1])) * inverse
                scratch.w[vertices] = inverse
                scratch.tone[vertices] = a[3] + t * (b[3] - a[3])
                vertices += 1
        for k in range(first + 1, vertices - 1):
            scratch.corners[faces, 0] = first
            scratch.corners[faces, 1] = k
            scratch.corners[faces, 2] = k + 1
            scratch.sources[faces] = f
            faces += 1
    return faces


@_jit()
def _light(packed, T, M, c, lamps, scratch):  # type: ignore[no-untyped-def]
    """Fill `scratch.light` with the brightness at a cluster's normals: ambient, two lamps, specular and rim."""
    vx, vy, vz = M[12] - packed.sphere[c, 0], M[13] - packed.sphere[c, 1], M[14] - packed.sphere[c, 2]
    length = 1.0 / max(math.sqrt(vx * vx + vy * vy + vz * vz), 1e-9)
    vx, vy, vz = vx * length, vy * length, vz * length
    first = packed.normal_start[c]
    closed = packed.part_closed[packed.cluster_part[c]]
    key_x, key_y, key_z, fill_x, fill_y, fill_z, ambient, key_power, fill_power, shine_power, rim_power = lamps
    kx = T[0, 0] * key_x + T[1, 0] * key_y + T[2, 0] * key_z
    ky = T[0, 1] * key_x + T[1, 1] * key_y + T[2, 1] * key_z
    kz = T[0, 2] * key_x + T[1, 2] * key_y + T[2, 2] * key_z
    fx = T[0, 0] * fill_x + T[1, 0] * fill_y + T[2, 0] * fill_z
    fy = T[0, 1] * fill_x + T[1, 1] * fill_y + T[2, 1] * fill_z
    fz = T[0, 2] * fill_x + T[1, 2] * fill_y + T[2, 2] * fill_z
    hx, hy, hz = kx + vx, ky + vy, kz + vz
    length = 1.0 / max(math.sqrt(hx * hx + hy * hy + hz * hz), 1e-9)
    hx, hy, hz = hx * length, hy * length, hz * length
    for i in range(packed.normal_start[c + 1] - first):
        nx, ny, nz = packed.normals[first + i]
        facing = nx * vx + ny * vy + nz * vz
        side = 1.0 if closed or facing >= 0.0 else -1.0
        key = max(side * (nx * kx + ny * ky + nz * kz), 0.0)
        fill = max(side * (nx * fx + ny * fy + nz * fz), 0.0)
        shine = max(side * (nx * hx + ny * hy + nz * hz), 0.0)
        shine *= shine
        shine *= shine
        shine *= shine
        shine *= shine
        shine *= shine
        rim = 1.0 - min(max(side * facing, 0.0), 1.0)
        brightness = ambient + key_power * key + fill_power * fill + shine_power * shine
        scratch.light[i] = brightness + rim_power * rim * rim * rim


@_jit()
def _candidates(corners, count, cell, keep):  # type: ignore[no-untyped-def]
    """Fill `keep` with the faces whose box contains a pixel centre; return their number. Branch-free."""
    kept = 0
    for k in range(count):
        a = cell[corners[k, 0]]
        difference = (a ^ cell[corners[k, 1]]) | (a ^ cell[corners[k, 2]])
        keep[kept] = k
        kept += 1 if ((difference & 0xFFFF) != 0) & ((difference >> 16) != 0) else 0
    return kept


@_jit()
def _draw(corners, tones, light, sources, base, count, culls, shaded, link_id, scratch, ids):  # type: ignore[no-untyped-def]
    """Draw faces whose corners are indices into `scratch.u, v, w` and, for brightness, into `light`."""
    right = float(ids.shape[1])
    u, v, w, cell, rows = scratch.u, scratch.v, scratch.w, scratch.cell, scratch.rows
    span_left, span_right, inverse_z = scratch.span_left, scratch.span_right, scratch.inverse_z
    for n in range(_candidates(corners, count, cell, scratch.keep)):
        k = scratch.keep[n]
        a, b, c = corners[k, 0], corners[k, 1], corners[k, 2]
        ua, ub, uc, va, vb, vc = u[a], u[b], u[c], v[a], v[b], v[c]
        ub_a, uc_a, vb_a, vc_a = ub - ua, uc - ua, vb - va, vc - va
        area = ub_a * vc_a - uc_a * vb_a
        if area == 0.0 or (culls and area > 0.0):
            continue
        ya, yb, yc = cell[a] >> 16, cell[b] >> 16, cell[c] >> 16
        y0, y1 = np.uintp(min(ya, yb, yc)), np.uintp(max(ya, yb, yc))
        uo, vo = ua, va
        # An edge always starts at its upper end, so both of its faces compute the same points on it.
        swap = va > vb
        ua, ub = (ub, ua) if swap else (ua, ub)
        va, vb = (vb, va) if swap else (va, vb)
        swap = vb > vc
        ub, uc = (uc, ub) if swap else (ub, uc)
        vb, vc = (vc, vb) if swap else (vb, vc)
        swap = va > vb
        ua, ub = (ub, ua) if swap else (ua, ub)
        va, vb = (vb, va) if swap else (va, vb)
        slope_ac, slope_ab, slope_bc = (uc - ua) / (vc - va), (ub - ua) / (vb - va), (uc - ub) / (vc - vb)
        filled = False
        for y in range(y0, y1):
            row_v = rows[y]
            upper = row_v < vb
            short_u, short_v = (ua, va) if upper else (ub, vb)
            short = short_u + (row_v - short_v) * (slope_ab if upper else slope_bc)
            long = ua + (row_v - va) * slope_ac
            low, high = (long, short) if long < short else (short, long)
            low = low if low > 0.0 else 0.0
            high = high if high < right else right
            x0, x1 = np.int32(np.ceil(low)), np.int32(np.ceil(high))
            span_left[y], span_right[y] = x0, x1
            filled = filled or bool(x0 < x1)
        if not filled:
            continue
        wa, wb, wc = w[a], w[b], w[c]
        w_low, w_high = min(wa, wb, wc), max(wa, wb, wc)
        inverse = 1.0 / area
        w_du = ((wb - wa) * vc_a - (wc - wa) * vb_a) * inverse
        w_dv = ((wc - wa) * ub_a - (wb - wa) * uc_a) * inverse
        for y in range(y0, y1):
            row, id_row = inverse_z[y], ids[y]
            w_row = wa + (rows[y] - vo) * w_dv
            for x in range(np.uintp(span_left[y]), np.uintp(max(span_left[y], span_right[y]))):
                exact = w_row + (rows[x] - uo) * w_du
                exact = exact if exact > w_low else w_low
                near = np.float32(exact if exact < w_high else w_high)
                if near >= row[x] and (near > row[x] or link_id < id_row[x]):
                    row[x] = near
                    id_row[x] = link_id
                    if shaded:
                        sa, sb, sc = light[tones[k, 0]], light[tones[k, 1]], light[tones[k, 2]]
                        s_du = (sb - sa) * vc_a - (sc - sa) * vb_a
                        s_dv = (sc - sa) * ub_a - (sb - sa) * uc_a
                        scratch.shade[y, x] = sa + ((rows[x] - uo) * s_du + (rows[y] - vo) * s_dv) * inverse
                        scratch.face[y, x] = base + k if base >= 0 else sources[k]


@_jit()
def _resolve(packed, camera, scratch, xyz, rgb, shaded):  # type: ignore[no-untyped-def]
    """Write XYZ and colours of the drawn frame, and clear the working memory."""
    fx, skew, cx, fy, cy = camera[:5]
    height, width = scratch.inverse_z.shape
    nan, one, zero = np.float32(np.nan), np.float32(1.0), np.float32(0.0)
    ray = scratch.ray
    for x in range(width):
        ray[x] = x / fx
    for y in range(height):
        row, out = scratch.inverse_z[y], xyz[y].reshape(-1)
        left, right = max(scratch.left[y], 0), min(scratch.right[y], width)
        if left >= right:
            left = right = 0
        out[: 3 * left] = nan
        out[3 * right :] = nan
        ray_y = np.float32((y - cy) / fy)
        shift = (cx + skew * ((y - cy) / fy)) / fx
        for x in range(left, right):
            w = row[x]
            z = one / w if w > zero else nan
            out[3 * x] = np.float32(ray[x] - shift) * z
            out[3 * x + 1] = ray_y * z
            out[3 * x + 2] = z
        if shaded:
            pixels = rgb[y]
            pixels[:left] = 0
            pixels[right:] = 0
            for x in range(left, right):
                if row[x] > zero:
                    s = scratch.shade[y, x]
                    f = scratch.face[y, x]
                    gloss = max(s - one, zero) * np.float32(255.0)
                    s = min(max(s, zero), one)
                    for j in range(3):
                        pixels[x, j] = np.uint8(min(packed.face_rgb[f, j] * s + gloss, np.float32(255.0)))
                else:
                    pixels[x] = 0
        row[left:right] = zero


@_jit()
def render_frame(packed, camera_T_link, camera, lamps, scratch, xyz, ids, rgb, shaded):  # type: ignore[no-untyped-def]
    """Draw one frame into xyz (H, W, 3) float32, ids (H, W) uint8 and, if shaded, rgb (H, W, 3) uint8.

    `camera` is (9,) float64: fx, skew, cx, fy, cy with integers at pixel centres, width, height, near
    plane in metres, largest distance of a visible point of the near plane from the eye.
    """
    height, width = ids.shape
    near = camera[7]
    nearest = 1.0 / near
    ids[:] = 0
    parts = scratch.parts
    scratch.left[:] = width
    scratch.right[:] = 0
    place_parts(packed, camera_T_link, camera, parts)
    for i in range(_order_clusters(packed, parts, scratch)):
        c = scratch.order[i]
        part = packed.cluster_part[c]
        M = parts[part]
        count = packed.vertex_start[c + 1] - packed.vertex_start[c]
        _project(packed, M, packed.vertex_start[c], packed.vertex_start[c + 1], scratch)
        low, high = _range(scratch.w, count)
        cut = low <= 0.0 or high > nearest
        if cut:
            x0, x1, y0, y1 = np.int32(0), np.int32(width), np.int32(0), np.int32(height)
        else:
            _find_cells(scratch, count, width, height)
            x0, x1, y0, y1 = _box(scratch.cell, count)
            if x0 >= x1 or y0 >= y1 or _hidden(scratch.inverse_z, x0, x1, y0, y1, np.float32(high)):
                continue
        if shaded:
            _light(packed, camera_T_link[packed.part_link[part]], M, c, lamps, scratch)
        link_id = np.uint8(packed.part_link[part] + 1)
        culls = M[15] > 0.0
        f0, f1 = packed.face_start[c], packed.face_start[c + 1]
        if cut:
            faces = _clip(packed, M, c, near, shaded, scratch)
            _find_cells(scratch, len(scratch.cell), width, height)
            _draw(
                scratch.corners,
                scratch.corners,
                scratch.tone,
                scratch.sources,
                np.int64(-1),
                faces,
                culls,
                shaded,
                link_id,
                scratch,
                ids,
            )
        else:
            _draw(
                packed.faces[f0:f1],
                packed.tones[f0:f1],
                scratch.light,
                scratch.sources,
                f0,
                f1 - f0,
                culls,
                shaded,
                link_id,
                scratch,
                ids,
            )
        for y in range(y0, y1):
            scratch.left[y] = min(scratch.left[y], x0)
            scratch.right[y] = max(scratch.right[y], x1)
    _resolve(packed, camera, scratch, xyz, rgb, shaded)

"""Robot acquisition: from orbit videos of a robot to an articulated URDF with reconstructed, coloured meshes.

video ─> frames ─> poses ─> masks ─> mesh ─> align ─> links ─> robot
        sharp,    board,   segmenter hull or  URDF's   cut by   URDF, meshes,
        spread    COLMAP             external geometry joints   IoU in every view
"""

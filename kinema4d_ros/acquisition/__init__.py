"""An unknown robot from a walk around it: orbit video in, articulated URDF with its own looks out.

video ─> frames ─> poses ─> masks ─> mesh ─> align ─> links ─> robot
        sharp,    board,   segmenter hull or  URDF's   cut by   URDF, meshes,
        spread    COLMAP             external geometry joints   IoU in every view
"""

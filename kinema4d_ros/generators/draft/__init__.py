"""Physics drafts: fit the objects on the table, simulate the commanded motion, draw what happens.

image, depth ─ fit ─> FittedScene ─ members ─> physics.ensemble ─ outcomes ─> representative runs ─ draw ─> Frames
"""

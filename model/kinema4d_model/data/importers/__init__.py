"""Importers of recorded data: Robo4D-200k, LeRobot, ROS 2 bags, RLDS.

source ─> Recording (images, joints, commands, camera, if available) ─> build_episode() ─> Episode, `missing` listed
                                                      masks: robot ─────┤
                                                      lifter: depth ────┘
items_of() ─> scenes ─> splits ─> collect(): shards, one recording at a time, rejections with reasons
"""

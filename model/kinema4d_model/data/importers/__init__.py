"""Episodes from what others recorded: Robo4D-200k, LeRobot, ROS 2 bags, RLDS.

source ─> Recording (images, joints, commands, camera: whatever there is) ─> build_episode() ─> Episode, gaps listed
                                                 masks: where the robot is ──┤
                                                 lifter: depth for video ────┘
items_of() ─> scenes ─> splits ─> collect(): shards, one recording at a time, refusals with their reasons
"""

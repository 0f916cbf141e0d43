"""Episodes from what others recorded: Robo4D-200k, LeRobot, ROS 2 bags, RLDS; and the lifter for missing depth.

source ─> Recording (images, joints, camera: whatever there is) ─> build_episode() ─> Episode, gaps listed
                                                                    └─ lifter: depth for plain video
"""

"""Everything that knows ROS types: messages <-> numpy, QoS, names, TF, parameters.

    sensor_msgs, trajectory_msgs, moveit_msgs     images, compressed, points, camera, joints, display, poses
    kinema4d_msgs/RobotFrames, Rollout, ErrorCode  frames, rollout, errors
    the graph's conventions                        names, qos, stamps, params, tf

Import the module you need; nothing is re-exported here, so that a node loads only what it uses.
"""

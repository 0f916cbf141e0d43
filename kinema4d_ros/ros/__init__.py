"""The ROS 2 layer: graph description, names, QoS, parameters, TF, messages, clients and nodes.

    messages/   conversions between messages and the core's types
    nodes/      thin: receive messages, call the library, publish the results
    graph       which nodes run together; used by the launch files and `kinema4d sim`

Nothing is re-exported here, so that a node imports only what it uses and `graph` imports without ROS.
"""

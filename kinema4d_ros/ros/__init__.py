"""Everything that knows ROS: the graph as data, names, QoS, parameters, TF, messages, clients and the nodes.

    messages/   messages <-> the core's types
    nodes/      thin: take messages, call the library, publish what comes back
    graph       which nodes run together; launch files and `kinema4d sim` render it

Nothing is re-exported here, so that a node loads only what it uses, and `graph` loads without ROS.
"""

"""Work in a process of its own: what crashes, hangs or runs out of memory there ends there.

    supervisor.Worker (this process)  <── framed bytes over a socket pair ──>  child.serve (the other)

Only bytes cross: no pickle, no shared state. The caller chooses what they mean.
"""

from kinema4d_ros.worker.child import Job, serve
from kinema4d_ros.worker.supervisor import Worker, WorkerTimes

__all__ = ["Job", "Worker", "WorkerTimes", "serve"]

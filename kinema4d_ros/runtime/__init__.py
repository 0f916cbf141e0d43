"""Processes: a worker whose crashes and hangs stay its own, a supervised set of programs, and how each one ends.

    supervisor.Worker (this process)  <── framed bytes over a socket pair ──>  child.serve (the other)

Only bytes cross: no pickle, no shared state.
"""

from kinema4d_ros.runtime.worker import Job, Worker, WorkerTimes, serve

__all__ = ["Job", "Worker", "WorkerTimes", "serve"]

"""Processes: an isolated worker, a pool, a supervised set of programs, access tokens and guaranteed shutdown.

`child.Child` starts, watches and ends every process that the others use.

    worker.Worker (this process)  <── framed bytes over a socket pair ──>  worker.serve (child process)

Only bytes cross the socket: no pickle, no shared state.
"""

from kinema4d_ros.runtime.worker import Job, Worker, WorkerTimes, serve

__all__ = ["Job", "Worker", "WorkerTimes", "serve"]

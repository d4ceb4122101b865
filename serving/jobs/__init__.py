"""Jobs: work that takes longer than a request. They are queued, run in the background, and survive a restart.

    job         JobStatus: the state of one job;  log_state: its line in the log
    jobs        Jobs: submit, list and cancel; one queue and one thread for each kind
    kinds       the task of each kind of job
    background  models that wait while the engine is busy
    records     JobRecords: jobs on disk
    events      a job's progress as server-sent events

A job is on disk before the client gets its id. Its result is written in the same transaction as its final state, so a
crash leaves both or neither. A job that a crash interrupted runs again at the next start.
"""

from .job import JobStatus
from .jobs import Jobs

__all__ = ["JobStatus", "Jobs"]

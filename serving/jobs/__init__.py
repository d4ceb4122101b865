"""Jobs: work that takes longer than a request. They are queued, run in the background, and survive a restart.

    job         JobStatus: the state of one job;  log_state: its line in the log
    jobs        Jobs: submit, list and cancel; one queue and one thread for each kind
    runner      JobRunner: runs one job from start to end
    context     JobContext: what the work sees of its job;  RetryingEmbedder: waits while the engine is busy
    kinds       the kinds of jobs and what each does;  add_images: the kinds that fill a collection
    job_store   JobRecords: jobs on disk;  ActiveJobs: those that have not ended, in memory
    events      a job's progress as server-sent events

A job is on disk before the client gets its id. Its result is written in the same transaction as its final state, so a
crash leaves both or neither. A job that a crash interrupted runs again at the next start.
"""

from .context import JobContext, Outcome
from .job import JobStatus
from .jobs import Jobs
from .kinds import KINDS, Kind

__all__ = ["KINDS", "JobContext", "JobStatus", "Jobs", "Kind", "Outcome"]

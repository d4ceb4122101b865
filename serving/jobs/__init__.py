"""Work that takes longer than a request: queued, done in the background, kept over a restart.

    job        Job: what is known of one, and its record
    task       Task: what the work sees of its job: progress to report, and whether to stop
    kinds      the kinds of jobs there are, and what each does;  patience  an embedder that waits its turn
    jobs       Jobs: the queue and its threads;  ledger  the records
    events     how a job goes on, as server-sent events;  telling  as lines of the log

A job is a record before anybody is told of it. What it makes is kept in the same transaction as the note that it is
done, so a crash leaves both or neither; a job that was cut short is taken up again at the next start.
"""

from .job import Job
from .jobs import Jobs
from .kinds import KINDS, Kind
from .outcome import Outcome
from .task import Task

__all__ = ["KINDS", "Job", "Jobs", "Kind", "Outcome", "Task"]

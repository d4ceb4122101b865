"""RUN/report.html: one self-contained page that shows whether an encoder is learning anything.

write_report([run], run / "report.html")
write_report([nnclr, simclr], "comparison.html")        # curves together
"""

from .page import write_report

__all__ = ["write_report"]

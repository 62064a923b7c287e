"""`verify_resume`: proof that your dataset and sampler resume exactly, or where they do not."""

from .resume_error import ResumeError
from .verify_resume import Report, verify_resume

__all__ = ["Report", "ResumeError", "verify_resume"]

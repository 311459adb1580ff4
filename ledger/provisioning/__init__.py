"""Configuration as code: a file that says what a workspace is, read whole, checked whole, and written whole or not.

``reading``   bytes → plain values (YAML 1.2 or JSON)
``checking``  plain values → a ``Plan``, or every fault with its path; no database
``applying``  a plan → rows, one transaction, and the differences found
"""

from ledger.provisioning.applying import Change, Result, apply, configured_checks
from ledger.provisioning.checking import check
from ledger.provisioning.plan import Checks, Plan, Problem, Refused
from ledger.provisioning.reading import read

__all__ = [
    "Change",
    "Checks",
    "Plan",
    "Problem",
    "Refused",
    "Result",
    "apply",
    "check",
    "configured_checks",
    "read",
]

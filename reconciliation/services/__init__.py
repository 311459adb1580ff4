"""The only writers of cases, look-ups and resolutions.

``cases``      opening, changing and closing a case: used by the other three
``sweeping``   what is due: leases that ended, cases to open and to close, look-ups to hand out
``asking``     one look-up, from the claim to what follows from its finding; asking at once for a runtime
``resolving``  what people decide, claim, note and wish
"""

from reconciliation.services.asking import (
    Asked,
    Reconciled,
    Recorded,
    begin,
    look_up,
    reconcile_now,
    record_finding,
)
from reconciliation.services.resolving import (
    Resolved,
    ask_again,
    claim_case,
    confirm,
    note,
    release_case,
    resolve,
)
from reconciliation.services.sweeping import Claim, Swept, claim, just_swept, release, sweep

__all__ = [
    "Asked",
    "Claim",
    "Reconciled",
    "Recorded",
    "Resolved",
    "Swept",
    "ask_again",
    "begin",
    "claim",
    "claim_case",
    "confirm",
    "just_swept",
    "look_up",
    "note",
    "reconcile_now",
    "record_finding",
    "release",
    "release_case",
    "resolve",
    "sweep",
]

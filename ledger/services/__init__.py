"""The only writers of the record, one file per verb's family; everything they change carries an Entry.

``intents``     record an intent
``relations``   what a new intent supersedes or compensates
``withdrawals`` give up what is intended or denied
``permits``     ask for permission to dispatch one attempt
``outcomes``    what a runtime reports about an attempt
``settlement``  what reconcilers and people found out; leases that ended
``writing``     the lock, the facts read under it, the entry: used by all the others
"""

from ledger.services.intents import record_intent
from ledger.services.outcomes import report_outcome
from ledger.services.permits import ask_permit
from ledger.services.settlement import annotate, conclude, expire_leases, note_asked, set_standing, settle
from ledger.services.withdrawals import withdraw

__all__ = [
    "annotate",
    "ask_permit",
    "conclude",
    "expire_leases",
    "note_asked",
    "record_intent",
    "report_outcome",
    "set_standing",
    "settle",
    "withdraw",
]

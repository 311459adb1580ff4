"""Rehearsals: recorded tool calls played through the ledger against a receiver that misbehaves on purpose.

A rehearsal has three sides that share nothing but sockets: the service, an honest runtime (``runtime``), and the
sandbox receiver (``sandbox``), whose own ledger file is the only truth and is read when everything has ended
(``truth``). Three players that do without the service (``baselines``) meet the same calls and the same faults.
"""

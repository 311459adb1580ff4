"""The SQL that this app's migrations install: append-only tables, policies, and the claim of due cases."""

GUARDS = """
CALL ledger_guard_append_only('reconciliation_lookup', '');
CALL ledger_guard_append_only('reconciliation_resolution', '');
CALL ledger_isolate('reconciliation_case', 'SELECT, INSERT, UPDATE');
CALL ledger_isolate('reconciliation_lookup', 'SELECT, INSERT');
CALL ledger_isolate('reconciliation_resolution', 'SELECT, INSERT');
"""

# The sweep and the workers see every workspace, but only through these two: which rows are due, and nothing of them.
QUEUE = """
CREATE OR REPLACE FUNCTION reconciliation_uncased(p_limit int)
RETURNS TABLE (workspace_id bigint, invocation_id uuid, operation_id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    -- Unknown outcomes that never had a case, oldest first. The reservations are the open work: history is not read.
    SELECT v.workspace_id, v.invocation_id, v.operation_id FROM ledger_reservation v
    WHERE v.lease_until IS NULL
      AND NOT EXISTS (SELECT FROM reconciliation_case c WHERE c.invocation_id = v.invocation_id)
    ORDER BY v.held_since LIMIT p_limit
$$;

CREATE OR REPLACE FUNCTION reconciliation_parked(p_limit int)
RETURNS TABLE (workspace_id bigint, operation_id text, kind text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    -- What was said of names that are not on record, and has no case yet.
    SELECT DISTINCT ON (k.workspace_id, k.operation_id) k.workspace_id, k.operation_id, k.kind
    FROM ledger_parkedevidence k
    WHERE k.matched_at IS NULL AND NOT EXISTS (
        SELECT FROM reconciliation_case c WHERE c.workspace_id = k.workspace_id AND c.operation_id = k.operation_id)
    ORDER BY k.workspace_id, k.operation_id, k.id LIMIT p_limit
$$;

CREATE OR REPLACE FUNCTION reconciliation_claim(p_limit int, p_lease_s int)
RETURNS TABLE (workspace_id bigint, case_id bigint, fence bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    -- Each due case goes to one worker: until its lease is over, with a fence higher than any before.
    UPDATE reconciliation_case c SET leased_until = clock_timestamp() + make_interval(secs => p_lease_s), fence = c.fence + 1
    WHERE c.id IN (
        SELECT d.id FROM reconciliation_case d
        WHERE d.closed_at IS NULL AND d.next_check_at <= clock_timestamp()
          AND (d.leased_until IS NULL OR d.leased_until <= clock_timestamp())
        ORDER BY d.next_check_at LIMIT p_limit FOR UPDATE SKIP LOCKED)
    RETURNING c.workspace_id, c.id, c.fence
$$;
"""

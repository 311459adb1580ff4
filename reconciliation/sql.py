"""The SQL that this app's migrations install: append-only tables, policies, and how the sweep finds its work."""

GUARDS = """
CALL ledger_guard_append_only('reconciliation_lookup', '');
CALL ledger_guard_append_only('reconciliation_resolution', '');
CALL ledger_isolate('reconciliation_case', 'SELECT, INSERT, UPDATE');
CALL ledger_isolate('reconciliation_lookup', 'SELECT, INSERT');
CALL ledger_isolate('reconciliation_resolution', 'SELECT, INSERT');
GRANT SELECT, INSERT, UPDATE ON reconciliation_sweeprun TO counterfoil_app;
"""

# The sweep and the workers see every workspace, but only through these: which rows are due, and nothing of them.
QUEUE = """
CREATE OR REPLACE FUNCTION reconciliation_uncased(p_limit int)
RETURNS TABLE (workspace_id bigint, operation_id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    -- Unknown outcomes that never had a case, oldest first. A closed case of the same unknown (abandoned) counts; one of
    -- an earlier unknown of the same operation, settled before this reservation was taken, does not. The reservations
    -- are the open work: history is not read.
    SELECT v.workspace_id, v.operation_id FROM ledger_reservation v
    WHERE v.lease_until IS NULL AND NOT EXISTS (
        SELECT FROM reconciliation_case c
        WHERE c.invocation_id = v.invocation_id AND (c.closed_at IS NULL OR c.opened_at >= v.held_since))
    ORDER BY v.held_since LIMIT p_limit
$$;

CREATE OR REPLACE FUNCTION reconciliation_disputed(p_limit int)
RETURNS TABLE (workspace_id bigint, operation_id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    -- Record and world disagree, and nobody has the case: only people clear that, so there is always an open one.
    SELECT i.workspace_id, i.operation_id FROM ledger_invocation i
    WHERE i.standing = 'discrepancy' AND NOT EXISTS (
        SELECT FROM reconciliation_case c WHERE c.invocation_id = i.id AND c.closed_at IS NULL)
    LIMIT p_limit
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

CREATE OR REPLACE FUNCTION reconciliation_overtaken(p_limit int)
RETURNS TABLE (workspace_id bigint, case_id bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    -- Open cases whose operation has moved on without them: a runtime's late outcome, an intent that was recorded.
    SELECT c.workspace_id, c.id FROM reconciliation_case c
    LEFT JOIN ledger_invocation i ON i.id = c.invocation_id
    WHERE c.closed_at IS NULL AND CASE c.kind
        WHEN 'unknown' THEN i.state NOT IN ('unknown', 'dispatched') OR i.standing <> 'none'
        WHEN 'discrepancy' THEN i.standing <> 'discrepancy'
        ELSE EXISTS (SELECT FROM ledger_invocation n
                     WHERE n.workspace_id = c.workspace_id AND n.operation_id = c.operation_id)
             AND NOT EXISTS (SELECT FROM ledger_parkedevidence k
                             WHERE k.workspace_id = c.workspace_id AND k.operation_id = c.operation_id
                               AND k.matched_at IS NULL AND k.kind <> 'no_entry')
    END LIMIT p_limit
$$;

CREATE OR REPLACE FUNCTION reconciliation_claim(p_limit int, p_lease_s int)
RETURNS TABLE (workspace_id bigint, case_id bigint, fence bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    -- Each due case goes to one worker: until its lease is over, with a fence higher than any before.
    UPDATE reconciliation_case c
    SET leased_until = clock_timestamp() + make_interval(secs => p_lease_s), asking_at = NULL, fence = c.fence + 1
    WHERE c.id IN (
        SELECT d.id FROM reconciliation_case d
        WHERE d.closed_at IS NULL AND d.next_check_at <= clock_timestamp()
          AND (d.leased_until IS NULL OR d.leased_until <= clock_timestamp())
        ORDER BY d.next_check_at LIMIT p_limit FOR UPDATE SKIP LOCKED)
    RETURNING c.workspace_id, c.id, c.fence
$$;
"""

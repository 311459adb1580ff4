-- What is known of operations, in one statement. Python puts these facts to the tables; nothing is decided here.

-- `*` matches any characters; the whole text must match.
CREATE OR REPLACE FUNCTION ledger_matches(pattern text, candidate text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT candidate LIKE replace(replace(replace(replace(pattern, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%')
$$;

CREATE OR REPLACE FUNCTION ledger_matches_any(patterns text[], candidate text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT EXISTS (SELECT FROM unnest(patterns) pattern WHERE ledger_matches(pattern, candidate))
$$;

-- Whose token is this? The only way from a credential to a workspace; no row: nobody's, revoked or expired.
CREATE OR REPLACE FUNCTION ledger_authenticate(p_token_id text, p_secret_hash bytea)
RETURNS TABLE (workspace_id bigint, workspace text, environment text, mandates_open boolean,
               runtime_id bigint, runtime text, scopes text[], capabilities text[], subjects text[])
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT w.id, w.name, w.environment, w.mandates_open, r.id, r.name, r.scopes, r.capabilities, r.subjects
    FROM ledger_runtimetoken t
    JOIN ledger_runtime r ON r.id = t.runtime_id
    JOIN ledger_workspace w ON w.id = r.workspace_id
    WHERE t.token_id = p_token_id AND t.secret_hash = p_secret_hash
      AND t.revoked_at IS NULL AND r.revoked_at IS NULL
      AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
$$;

-- One jsonb object an operation. Call it with counterfoil.workspace set; read it after the row lock when it is to be
-- acted upon: `now` is the clock at that moment.
CREATE OR REPLACE FUNCTION ledger_facts_of(i ledger_invocation) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'now', clock_timestamp(),
        'workspace_id', i.workspace_id,
        'workspace', w.name,
        'environment', w.environment,
        'invocation_id', i.id,
        'operation_id', i.operation_id,
        'task_id', t.task_id,
        'actor_subject', i.actor_subject,
        'on_behalf_of', i.on_behalf_of,
        'arguments_digest', i.arguments_digest,
        'salt', encode(i.salt, 'hex'),
        'business_reference', i.business_reference,
        'idempotency_key', i.idempotency_key,
        'amount', CASE WHEN i.amount_value IS NOT NULL
                       THEN jsonb_build_object('value', i.amount_value, 'currency', i.amount_currency) END,
        'supersedes', i.supersedes,
        'superseded_by', i.superseded_by,
        'compensates', i.compensates,
        'approvals_needed', i.approvals_needed,
        'approval_reason', i.approval_reason,
        'state', i.state,
        'standing', i.standing,
        'flags', to_jsonb(i.flags),
        'version', i.version,
        'attempt_count', i.attempt_count,
        'first_permit_at', i.first_permit_at,
        'asked_at', i.asked_at,
        'outcome', i.outcome,
        'receiver_reference', i.receiver_reference,
        'result', i.result,
        'outcome_source', i.outcome_source,
        'settled_at', i.settled_at,
        'denial_reason', i.denial_reason,
        'denial_class', i.denial_class,
        'denial_clears_at', i.denial_clears_at,
        'created_at', i.created_at,
        'intent_valid_until', i.intent_valid_until,
        'capability', jsonb_build_object(
            'id', c.id, 'name', c.name, 'version', c.version, 'risk', c.risk, 'lease_s', c.lease_s,
            'max_attempts', c.max_attempts, 'duplicates', c.duplicates, 'contract', c.contract, 'verified', c.verified,
            'matches_evidence', c.matches_evidence,
            'enabled', EXISTS (SELECT FROM ledger_capability n
                               WHERE n.workspace_id = c.workspace_id AND n.name = c.name AND n.current AND n.enabled)),
        'receiver', r.name,
        'receiver_id', i.receiver_id,
        'attempts', coalesce((
            SELECT jsonb_agg(jsonb_build_object(
                'number', a.number, 'state', a.state, 'permitted_at', a.permitted_at, 'lease_until', a.lease_until,
                'reported_at', a.reported_at, 'ended_at', a.ended_at, 'fault', a.fault,
                'nonce_hash', encode(a.nonce_hash, 'hex')) ORDER BY a.number)
            FROM ledger_attempt a WHERE a.invocation_id = i.id), '[]'),
        'mandates_open', w.mandates_open,
        'mandates', coalesce((
            SELECT jsonb_agg(jsonb_build_object(
                'subject', m.subject, 'capability', m.capability, 'valid_until', m.valid_until,
                'revoked', m.revoked_at IS NOT NULL, 'limited', m.limits <> '[]'::jsonb))
            FROM ledger_mandate m
            WHERE m.workspace_id = i.workspace_id
              AND ledger_matches(m.capability, c.name) AND ledger_matches(m.subject, i.actor_subject)), '[]'),
        'paused', (
            SELECT p.reason FROM ledger_pause p
            WHERE p.workspace_id = i.workspace_id AND p.lifted_at IS NULL
              AND (p.ends_at IS NULL OR p.ends_at > clock_timestamp())
              AND (p.capability IS NULL OR p.capability = c.name)
              AND (p.receiver_id IS NULL OR p.receiver_id = i.receiver_id)
            ORDER BY p.id LIMIT 1),
        'grant', (
            SELECT jsonb_build_object(
                'binding', g.binding, 'needed', g.needed, 'given', cardinality(g.approver_ids), 'until', g.until,
                'refused', g.refused_at IS NOT NULL, 'revoked', g.revoked_at IS NOT NULL,
                'approver_lost_role', EXISTS (
                    SELECT FROM unnest(g.approver_ids) approver WHERE NOT EXISTS (
                        SELECT FROM ledger_membership b
                        WHERE b.workspace_id = i.workspace_id AND b.user_id = approver AND b.role = 'approver')))
            FROM ledger_grant g WHERE g.invocation_id = i.id),
        -- Unsettled operations with the same arguments or reference. Held is the first permit only, whatever came
        -- before it (a refusal too); a capability that only shows them shows them while this one is unsettled itself.
        'twins', CASE WHEN c.duplicates = 'off' OR i.state IN ('completed', 'withdrawn')
                           OR (c.duplicates = 'hold' AND i.first_permit_at IS NOT NULL)
                      THEN '[]'::jsonb ELSE coalesce((
            SELECT jsonb_agg(twin.operation_id ORDER BY twin.since)
            FROM (
                SELECT v.operation_id, v.held_since AS since
                FROM ledger_reservation v
                WHERE v.workspace_id = i.workspace_id AND v.capability_name = c.name AND v.invocation_id <> i.id
                  AND (v.twin_digest = coalesce(i.twin_digest, i.arguments_digest)
                       OR v.business_reference = i.business_reference)
                UNION
                -- What it supersedes turned out to have an effect, or may have one.
                SELECT o.operation_id, o.created_at FROM ledger_invocation o
                WHERE o.workspace_id = i.workspace_id AND o.operation_id = i.supersedes
                  AND o.state NOT IN ('withdrawn', 'denied')
            ) twin), '[]') END
    )
    FROM ledger_capability c, ledger_receiver r, ledger_task t, ledger_workspace w
    WHERE c.id = i.capability_id AND r.id = i.receiver_id AND t.id = i.task_id AND w.id = i.workspace_id
$$;

CREATE OR REPLACE FUNCTION ledger_facts(p_workspace bigint, p_operation_ids text[]) RETURNS SETOF jsonb
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('counterfoil.workspace', p_workspace::text, true);
    RETURN QUERY SELECT ledger_facts_of(i) FROM ledger_invocation i
        WHERE i.workspace_id = p_workspace AND i.operation_id = ANY (p_operation_ids);
END $$;

-- GET in one statement: whose token, and the operation if it is theirs. No row: not authenticated.
CREATE OR REPLACE FUNCTION ledger_read(p_token_id text, p_secret_hash bytea, p_operation_id text)
RETURNS TABLE (caller jsonb, facts jsonb) LANGUAGE plpgsql AS $$
DECLARE
    who record;
BEGIN
    SELECT * INTO who FROM ledger_authenticate(p_token_id, p_secret_hash);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM set_config('counterfoil.workspace', who.workspace_id::text, true);
    RETURN QUERY SELECT to_jsonb(who), (
        SELECT ledger_facts_of(i) FROM ledger_invocation i
        WHERE i.workspace_id = who.workspace_id AND i.operation_id = p_operation_id);
END $$;

-- The waiters' poll: versions of many operations of many workspaces at once, and nothing else of them.
CREATE OR REPLACE FUNCTION ledger_versions(p_invocation_ids uuid[]) RETURNS TABLE (invocation_id uuid, version int)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT i.id, i.version FROM ledger_invocation i WHERE i.id = ANY (p_invocation_ids)
$$;

-- The sweep's: operations whose lease is over, of every workspace, oldest first.
CREATE OR REPLACE FUNCTION ledger_overdue(p_limit int) RETURNS TABLE (workspace_id bigint, operation_id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT v.workspace_id, v.operation_id FROM ledger_reservation v
    WHERE v.lease_until <= clock_timestamp() ORDER BY v.lease_until LIMIT p_limit
$$;

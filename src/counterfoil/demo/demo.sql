-- What the demo tells while it happens; read under the agent's own login.

-- name: moves
SELECT h.history_id, EXTRACT(EPOCH FROM h.at)::float8 AS at_s, a.tool, h.from_state, h.to_state, h.reason, h.evidence
FROM counterfoil.history AS h JOIN counterfoil.action AS a ON a.action_id = h.action_id
WHERE h.tenant = :tenant AND h.run = :run AND h.history_id > :read
ORDER BY h.history_id LIMIT 100;

-- What people have changed while the fleet runs. Writes go through the definer function of the migration.

-- name: read_changes
-- The newest change of each key, of those that came after `after`: usually there is none, and the primary key's end says
-- so. Ids are in the order of the commits, so whoever has seen one has seen all before it.
SELECT DISTINCT ON (c.key) c.change_id, c.key, c.value, c.by_person, c.db_role, c.channel, c.reason, c.at
FROM counterfoil.setting_change AS c
WHERE c.change_id > CAST(:after AS bigint)
ORDER BY c.key, c.change_id DESC;

-- name: list_changes
-- For an audit: every change, those that a later one has replaced included, the newest first.
SELECT c.change_id, c.key, c.value, c.by_person, c.db_role, c.channel, c.reason, c.at
FROM counterfoil.setting_change AS c
WHERE CAST(:provider AS text) IS NULL OR split_part(c.key, '.', 2) = :provider
ORDER BY c.change_id DESC LIMIT :limit;

-- name: list_modes
-- What the claim reads: providers without a row run.
SELECT m.provider, m.mode, m.since FROM counterfoil.provider_mode AS m;

-- name: change_settings
SELECT counterfoil.change_settings(
  CAST(:keys AS text[]), CAST(:values AS text[]), :by, :channel, :reason) AS change_id;

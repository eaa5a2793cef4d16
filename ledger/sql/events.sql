-- What a provider's event may do: have uncertain rows looked at sooner.

-- name: look_now_by_key
SELECT counterfoil.look_now_by_key(:provider, CAST(:accounts AS text[]), CAST(:keys AS text[]), CAST(:targets AS text[]))
  AS sooner;
